"""Federated learning: sites that may not share their traces learn together what policies read.

A *problem* says what is learned (estimates, or the parameters of a policy), a *federation* is the server's
side of it, round by round, and a *site* answers from its own trace. They are functions on arrays; the
connection is `server` and `client`.
"""
