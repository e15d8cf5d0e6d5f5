"""`python -m quicksilver`: the command line, where the program is not on the path."""

from quicksilver.cli import main

if __name__ == "__main__":
    main()
