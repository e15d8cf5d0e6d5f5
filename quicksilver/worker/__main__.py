"""`python -m quicksilver.worker`: runs the engine worker."""

from quicksilver.worker.program import main

if __name__ == "__main__":
    main()
