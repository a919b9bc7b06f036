"""Images and labels, verified, and the splits that a certificate rests on. `python -m ldaf_bench.data NAME --root DIR`

Read in this order; each module builds on those above it only.

================  =================================================================
`dataset`         `Dataset`: decoded arrays that know their checksum; `DataError`
`formats`         decoders: idx, CIFAR's batches (nothing is executed), sprites
`folder`          people's own images: class folders or a Parquet file
`store`           the decoded file: written whole or not at all, read memory-mapped
`sources`         where the files come from: a directory, torchvision, package mirrors
`datasets`        DATASETS; `load`, what the rest of the program calls
`fetch`           from the first source that gives the right data to one verified file
`splits`          prior / certificate / test; what a prior saw; `require_unseen`
`augment`         batches for training
================  =================================================================
"""
