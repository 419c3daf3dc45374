from privproj.io.ledger import Account as Account, read_ledger as read_ledger
