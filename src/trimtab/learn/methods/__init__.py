"""Methods of learning, one file for each published method."""
