"""`python -m samza_azure` is `samza-azure`."""

from samza_azure.cli import main

if __name__ == "__main__":
    main()
