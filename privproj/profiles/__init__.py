"""What a bound can say: a profile, a Renyi curve or an (epsilon, delta) rule, and how each is read both ways."""
