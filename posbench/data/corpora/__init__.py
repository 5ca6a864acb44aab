"""One file per corpus; the file name is the value of `data=`."""
