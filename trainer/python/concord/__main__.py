"""`python -m concord` is the command `concord`."""

from concord._program import main

main()
