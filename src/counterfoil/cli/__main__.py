"""`python -m counterfoil.cli` does what `counterfoil` does."""

from counterfoil.cli.main import main

if __name__ == "__main__":
    main()
