"""A script that may be killed and started again: python script.py ORDER CENTS."""

import sys

from refunds import refund, say

import counterfoil as cf

if __name__ == "__main__":
    order, cents = sys.argv[1], int(sys.argv[2])
    print(say(cf.guard(f"refund-{order}", refund, {"order": order, "cents": cents})))
