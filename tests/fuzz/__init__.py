"""Every decoder that faces the network or the disk, fed with garbage and with damaged good bytes."""
