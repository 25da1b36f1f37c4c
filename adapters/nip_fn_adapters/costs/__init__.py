"""Prices, spending, forecasts and budgets."""
