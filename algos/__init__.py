"""What is decided: acceptance rules, tree policies and spatial rules, in NumPy, with no engine behind them."""
