"""What the paper's public scripts do, where that is not what its text says. Not part of the public API.

`losses`       heads with biases and cross-entropy of probabilities; Fourier features with linear penalties
`plateau`      rates that fall when test losses do not
`descent`      the step of the scripts for FashionMNIST and Letter
`repeated`     the step of the script for sinusoids

Facts from the repository minimario/MORBiT: sinusoid_final/sinusoid_final.py, xmnist/mtl-rep.py (FashionMNIST),
xmnist/hpo-hd-kernel.py (Letter) and xmnist/utils.py, in their last versions; none of its code is used.
"""
