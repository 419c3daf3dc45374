"""Write privacy statements for model cards, and verify them."""
