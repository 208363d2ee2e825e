import sys

from prefixscope.cli import main

sys.exit(main())
