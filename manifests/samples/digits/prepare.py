"""Writes the digits, split into a training and a test part, to the path that is its argument; once."""

import os
import sys
from pathlib import Path

import numpy
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

path = Path(sys.argv[1])
if not path.exists():  # a launcher that is started again goes on with the same data
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype("int64"), test_size=0.25, stratify=labels, random_state=7
    )
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        numpy.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    os.replace(partial, path)
