#!/bin/sh
# A custom plugin of node-problem-detector: check-commwatch.sh Critical|Warning
# Exit code 0: the node's verdict is another; 1: it is this one; 2: it is not known. One line on standard output.
PATH=/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}
export PATH
line=$(timeout -k 1 8 commwatch healthcheck 2>/dev/null)
# The words decide, not the exit code: a Python that cannot start ends with 1 too.
case $line in
"$1: "*) code=1 ;;
"OK: "* | "Warning: "* | "Critical: "*) code=0 ;;
"Unknown: "*) code=2 ;;
*) code=2 line="Unknown: commwatch healthcheck gave no verdict" ;;
esac
echo "$line"
exit "$code"
