"""What a scenario file may say: checked, frozen configuration."""
