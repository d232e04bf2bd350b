import Config

# Every setting of Sconce with its default. An app copies the lines that it changes into its own
# config/runtime.exs. A variable of the environment counts over a line here, and an option of a
# call over both. `mix sconce.doctor` prints the values in force and their sources.
#
# This file is made from the table of Sconce.Config, and a test compares them.

# config :sconce,
#   # Device of policies and runs, see Sconce.Device. Of several cards, as {:cuda, [0, 1]}, runs
#   # of Sconce.Trainer use all, and others the first. Variables: SCONCE_DEVICE,
#   # CUDA_VISIBLE_DEVICES, EXPHIL_GPU, EXLA_TARGET, XLA_TARGET.
#   device: :cpu,
#
#   # How several cards of a run share its work: each batch is divided among them.
#   distribution: :data_parallel,
#
#   # Precision of runs of Sconce.Trainer, as their option :precision. It overrides that of a
#   # preset. Variables: SCONCE_PRECISION.
#   precision: :f32,
#
#   # Type in which a run sums products. There is no other.
#   accumulation_dtype: :f32,
#
#   # Largest share of a card's memory in use, see Sconce.GPU.Ledger. Variables:
#   # SCONCE_MEMORY_FRACTION, EXPHIL_GPU_MEMORY_FRACTION, EXLA_MEMORY_FRACTION.
#   memory_fraction: 1.0,
#
#   # The same limit in bytes, as in "8GB"; the lower one counts. Variables: SCONCE_MEMORY_BUDGET.
#   memory_budget: nil,
#
#   # Threads of training and evaluation; nil keeps the current number. Variables: SCONCE_THREADS.
#   threads: nil,
#
#   # Priority on Linux of native threads that train, evaluate and import: nice 19, SCHED_IDLE or
#   # normal, see Sconce.Serving. Read at the start of such work. Variables: SCONCE_BACKGROUND.
#   background: :nice,
#
#   # Preset of mix sconce.train, see Sconce.Preset; as text also exphil:quick and gpu:rtx_3090.
#   # Variables: SCONCE_PRESET, EXPHIL_DEFAULT_PRESET.
#   preset: nil,
#
#   # Path that mix sconce.import reads if none is given. Variables: EXPHIL_REPLAYS_DIR.
#   replays: nil,
#
#   # Whether this VM and its runs write the files that mix sconce.monitor reads. Variables:
#   # SCONCE_MONITOR.
#   monitor: true,
#
#   # Path of the driver's libnvidia-ml.so.1 or its folder, if Sconce.GPU does not find it.
#   # Variables: SCONCE_NVML.
#   nvml: nil,
#
#   # Folder in which each run and each VM keeps a file of its figures, for mix sconce.monitor; by
#   # default sconce in $XDG_STATE_HOME, or else in ~/.local/state. Variables: SCONCE_MONITOR_DIR.
#   monitor_dir: nil,
#
#   # File for a trace of this VM, written when it ends: spans of native threads for Perfetto, see
#   # Sconce.Monitor.trace/2. Variables: SCONCE_TRACE.
#   trace: nil,
#
#   # Whether Sconce.Tuner measures and keeps what is fastest on this machine. Variables:
#   # SCONCE_TUNER.
#   tuner: true,
#
#   # Folder of these measurements; by default sconce/tuner in the user's cache. Variables:
#   # SCONCE_TUNER_DIR.
#   tuner_dir: nil
