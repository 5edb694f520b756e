"""Makes `builders` importable from every test folder: pytest puts the folder of this file on the path."""
