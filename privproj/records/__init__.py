"""What is kept on disk and read again: run files, ledgers, certificates, sweeps, expected bounds."""
