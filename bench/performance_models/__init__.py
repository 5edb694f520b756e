"""How well seconds are predicted that were not measured: errors on rows that are held back."""
