"""The same two pieces of work on the engines that people run, alone and with trimtab."""
