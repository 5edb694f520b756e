"""Learning, for researchers (extra `learn`): environments where agents decide, and methods to train them.

No other package imports Gymnasium: a trained policy runs in every host without this extra.
"""
