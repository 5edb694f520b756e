"""Policies that combine planning and rules of several kinds."""
