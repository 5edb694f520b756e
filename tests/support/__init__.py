"""What tests share: builders, oracles, small policies, gateways in processes of their own."""
