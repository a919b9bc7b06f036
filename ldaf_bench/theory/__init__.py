"""The mathematics of LDAF certificates: pure tensor functions, no I/O, no Ray.

Read in this order; each module builds on those above it only.

================  =================================================================
`arguments`       refusals: a `ValueError` that names the argument and what was expected
`chunks`          how many data are worked on at once
`seeds`           seeds from named components
`simplex`         projection, the replicator's factor, coordinates of the tangent space
`krylov`          T^p phi_p(TH) w for symmetric H by Lanczos, with error and gradient
`flows`           FLOWS: the fitness operators `daf`, `sflow`, and the ablation `linear`
`gaussian`        Gaussian coordinates: Diag(d) + q q^T or dense, with or without a mean; KL divergence
`pushforward`     (M, G) once per datum, and the covariance of the class logits from it
`betting`         an upper confidence limit for a mean, by betting
`bounds`          BOUNDS: from empirical risk to certificate; the binary kl and its inverses
`normal`          one- and two-dimensional normal probabilities
`integrate`       INTEGRATORS: the expected risk, each with what it guarantees
`logits`          from cached data and Gaussian coordinates to the integrals that integrators take
`layer`           a Gaussian last layer: the same integrals from feature vectors
`covariances`     COVARIANCES: how a prior's covariance is initialized
`certificate`     one certificate: bound, integration error and selection paid for together
`posterior`       fitting a Gaussian and lambda on cached data
================  =================================================================

References, cited by key in the modules:

- [Boll22] Boll, Zeilmann, Petra, Schnörr. Self-Certifying Classification by Linearized
  Deep Assignment. arXiv:2201.11162.
- [Higham08] Higham. Functions of Matrices. SIAM.
- [Saad92] Saad. Analysis of some Krylov subspace approximations to the matrix
  exponential operator. SIAM J. Numer. Anal. 29.
- [Zeilmann21] Zeilmann, Petra, Schnörr. Learning linearized assignment flows for image
  labeling. arXiv:2108.02571.
- [Genz92] Genz. Numerical computation of multivariate normal probabilities. JCGS 1.
- [Genz04] Genz. Numerical computation of rectangular bivariate and trivariate normal and
  t probabilities. Stat. Comput. 14.
- [Hunter76], [Worsley82] Upper bounds for the probability of a union, by a spanning tree.
- [Hoeffding63] Probability inequalities for sums of bounded random variables. JASA 58.
- [Maurer04] A note on the PAC Bayesian theorem. arXiv:cs/0411099.
- [Thiemann17] A strongly quasiconvex PAC-Bayesian bound. ALT.
- [PerezOrtiz21] Tighter risk certificates for neural networks. JMLR 22.
- [Catoni07] PAC-Bayesian supervised classification. IMS.
- [Foong21] Foong, Bruinsma, Burt, Turner. How tight can PAC-Bayes be in the small data regime?
  NeurIPS.
- [WuSeldin22] Wu, Seldin. Split-kl and PAC-Bayes-split-kl inequalities for ternary random
  variables. NeurIPS.
- [WaudbySmith23] Waudby-Smith, Ramdas. Estimating means of bounded random variables by betting.
  JRSS B 86.
- [Langford05] Tutorial on practical prediction theory for classification. JMLR 6.
"""
