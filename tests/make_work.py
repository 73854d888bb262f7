"""Functions for workers: in a module of their own, because a spawned process must import them."""

import os
import signal
import threading

from eroica.errors import InputError, MissingExtra


def square(number):
    return number * number


def odd_fails(number):
    if number % 2:
        raise InputError(f"rank {number} cannot be read", "found nothing", "look again")
    return number


def surprise(number):
    raise KeyError(number)


def extra(number):
    raise MissingExtra("the thing", "ray")


def dies_on_two(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def thread_and_process(_):
    return threading.current_thread().name, os.getpid()


def dies_on_two_and_says_who(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()
