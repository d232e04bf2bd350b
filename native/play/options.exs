options!(
  world: [
    environments: [
      value: usize,
      default: 32,
      doc: "Environments that play side by side.",
      min: 1,
      max: 65_536
    ],
    time_limit: [
      optional: u32,
      default: nil,
      doc: "Steps after which an episode is cut. `nil`: the environment's own limit.",
      min: 1,
      max: 16_777_216
    ],
    action_repeat: [
      value: u32,
      default: 1,
      doc: "Steps of the environment with one action.",
      min: 1,
      max: 1000
    ],
    frame_stack: [
      value: usize,
      default: 1,
      doc: "Last observations that the policy reads, the present one included.",
      min: 1,
      max: 256
    ],
    opponent: [
      optional: String,
      default: nil,
      doc: "Scripted player of the second seat. `nil`: the policy plays all seats.",
      type: {:or, [nil, :string, :atom]}
    ],
    reward_weights: [
      list: RewardWeight,
      default: nil,
      doc: "Weights of the reward terms, a keyword list; 1 for a term that is not named.",
      type: {:or, [:keyword, nil]}
    ],
    processes: [
      optional: usize,
      default: nil,
      doc: "Processes that step the environments of a module. `nil`: one for each scheduler.",
      min: 1,
      max: 1024,
      resume: :free
    ],
    step_timeout_ms: [
      value: u64,
      default: 30_000,
      doc: "Milliseconds for which a step waits for a module.",
      min: 1,
      max: 3_600_000,
      resume: :free
    ]
  ],
  rollout: [
    rollout_steps: [
      value: usize,
      default: 64,
      doc: "Steps of each environment between two updates.",
      min: 1,
      max: 65_536
    ],
    sequence_length: [
      value: usize,
      default: 16,
      doc:
        "Steps through which a policy with memory learns at once. A policy without memory learns from single steps.",
      min: 1,
      max: 65_536
    ],
    discount: [
      value: f64,
      default: 0.99,
      doc: "Discount of a reward per step.",
      min: 0,
      max: 1
    ],
    lambda: [
      value: f64,
      default: 0.95,
      doc: "Decay of the sum of temporal differences per step in the advantage.",
      min: 0,
      max: 1
    ],
    max_lag: [
      value: u64,
      default: 8,
      doc:
        "Updates that the weights of a live segment may be behind those that learn; older segments are dropped and counted.",
      min: 0,
      max: 1_000_000
    ],
    off_policy: [
      value: OffPolicy,
      default: :clip,
      doc:
        "Advantages of live segments: of their recorded values (`:clip`), or by `:v_trace` with the values and likelihoods of the weights that learn.",
      type: {:in, [:clip, :v_trace]}
    ],
    rho: [
      value: f64,
      default: 1.0,
      doc: "Largest ratio of likelihoods by which `:v_trace` weighs a temporal difference.",
      above: 0,
      max: 1000,
      needs: [off_policy: [:v_trace]]
    ],
    overlap: [
      value: bool,
      default: false,
      doc:
        "Plays the next rollout, with the weights before the update, while the update runs. Actions are then one update older than the weights that learn from them."
    ],
    normalise_observations: [
      value: bool,
      default: false,
      doc:
        "Normalises each number of an observation by its running mean and deviation, which become a part of the policy."
    ],
    normalise_rewards: [
      value: bool,
      default: false,
      doc: "Divides rewards by the running deviation of the discounted return."
    ]
  ],
  ppo: [
    epochs: [
      value: usize,
      default: 4,
      doc: "Passes over the steps of a rollout.",
      min: 1,
      max: 1000
    ],
    minibatches: [
      value: usize,
      default: 4,
      doc:
        "Batches of a pass, each with an update of the weights. With a policy with memory a batch has whole sequences.",
      min: 1,
      max: 65_536
    ],
    clip: [
      value: f64,
      default: 0.2,
      doc: "Bound on the change of an action's likelihood ratio from 1.",
      above: 0,
      max: 10,
      needs: [policy_weight: :above_zero]
    ],
    clip_to: [
      optional: f64,
      default: nil,
      doc: "Value of `:clip` at the end of the run, reached linearly.",
      above: 0,
      max: 10,
      needs: [policy_weight: :above_zero]
    ],
    policy_weight: [
      value: f64,
      default: 1.0,
      doc:
        "Factor on the loss of the actions' likelihoods. With 0, the policy learns from its teachers alone, on the steps that it plays.",
      min: 0,
      max: 1000,
      needs: [teacher: :given]
    ],
    value_clip: [
      optional: f64,
      default: nil,
      doc: "Bound on the change of a value in one update.",
      above: 0,
      max: 1_000_000
    ],
    value_weight: [
      value: f64,
      default: 0.5,
      doc: "Factor on the value loss, which is half the squared error.",
      min: 0,
      max: 1000
    ],
    entropy_weight: [
      value: f64,
      default: 0.01,
      doc: "Factor on the entropy.",
      min: 0,
      max: 1000
    ],
    entropy_to: [
      optional: f64,
      default: nil,
      doc: "Value of `:entropy_weight` at the end of the run, reached linearly.",
      min: 0,
      max: 1000
    ],
    target_kl: [
      optional: f64,
      default: nil,
      doc: "An update stops when the divergence from the weights before it exceeds 1.5 times this number of nats.",
      above: 0,
      max: 1000
    ],
    normalise_advantages: [
      value: Normalise,
      default: :sample,
      doc:
        "Normalisation of the advantages of a batch: by the deviation of a `:sample` (over n - 1), of a `:population` (over n), or `:none`.",
      type: {:in, [:sample, :population, :none]},
      needs: [policy_weight: :above_zero]
    ]
  ],
  optimiser: [
    learning_rate: [
      value: f64,
      default: 2.5e-3,
      doc: "Learning rate at the start of the run. A policy that sees images begins with 0.0007 and ends with 0.0001 if neither rate is given.",
      above: 0,
      max: 1000
    ],
    learning_rate_to: [
      optional: f64,
      default: nil,
      doc: "Learning rate at the end of the run, reached linearly.",
      min: 0,
      max: 1000
    ],
    eps: [
      value: f64,
      default: 1.0e-5,
      doc: "Constant added to the denominator of an update by Adam.",
      above: 0,
      max: 1
    ],
    max_grad_norm: [
      value: f64,
      default: 0.5,
      doc: "Largest norm of the gradient; longer ones are shortened to it.",
      above: 0,
      max: 1_000_000
    ],
    quantise: [
      optional: Format,
      default: nil,
      doc: "Trains matrices for integers of 8 or 4 bits: the weights that play and learn are on a grid, see above. `nil`: f32.",
      type: {:or, [{:in, [:int8, :int4]}, nil]}
    ],
    quantise_group: [
      optional: usize,
      default: nil,
      doc: "Columns of a row that share a scale with `:int4`; `nil` is 32.",
      min: 1,
      max: 65_536,
      needs: [quantise: [:int4]]
    ],
    quantise_steps: [
      value: Steps,
      default: :largest,
      doc: "Steps of the grids: the largest magnitude of a row or group over its largest code, or `:learned` ones (LSQ), see above.",
      type: {:in, [:largest, :learned]},
      needs: [quantise: :given]
    ],
    quantise_activations: [
      value: bool,
      default: false,
      doc: "Rounds the inputs of quantised matrices as sessions round them: to 16 bits before `:int8`, to 8 bits in blocks of 32 before `:int4`.",
      needs: [quantise: :given]
    ],
    quantise_after: [
      value: f64,
      default: 0.2,
      doc: "Share of the run before the weights begin to move to their grid.",
      min: 0,
      max: 1,
      needs: [quantise: :given]
    ],
    quantise_ramp: [
      value: f64,
      default: 0.3,
      doc: "Share of the run in which the weights move to their grid linearly.",
      min: 0,
      max: 1,
      needs: [quantise: :given]
    ],
    prune: [
      optional: Pattern,
      default: nil,
      doc:
        "Trains matrices in which weights are 0: two of each four inputs of an output (`:two_four`), or `:prune_sparsity` of the weights of an output (`:unstructured`). Excludes `:quantise`. `nil`: all weights stay.",
      type: {:or, [{:in, [:two_four, :unstructured]}, nil]}
    ],
    prune_sparsity: [
      value: f64,
      default: 0.8,
      doc: "Part of the weights of an output that are 0 at the end, with `prune: :unstructured`.",
      min: 0,
      below: 1,
      needs: [prune: [:unstructured]]
    ],
    prune_after: [
      value: f64,
      default: 0.2,
      doc: "Share of the run before the first weights are removed.",
      min: 0,
      max: 1,
      needs: [prune: :given]
    ],
    prune_ramp: [
      value: f64,
      default: 0.5,
      doc: "Share of the run in which they are removed: fast at first, then slower (Zhu and Gupta 2017).",
      min: 0,
      max: 1,
      needs: [prune: :given]
    ]
  ],
  schedule: [
    steps: [
      value: u64,
      default: 500_000,
      doc: "Steps of all environments together. A run takes whole updates and never more steps than this.",
      min: 1,
      max: 1_000_000_000_000,
      resume: :free
    ],
    target_return: [
      optional: f64,
      default: nil,
      doc: "The run ends when the mean return of the last 100 episodes reaches this number.",
      resume: :free
    ],
    max_minutes: [
      optional: f64,
      default: nil,
      doc: "Minutes after which the run ends.",
      above: 0,
      max: 1_000_000,
      resume: :free
    ]
  ],
  weights: [
    policy: [
      optional: PathBuf,
      default: nil,
      doc: "File of a policy whose weights the run starts from."
    ],
    initialisation: [
      value: Initialisation,
      default: :orthogonal,
      doc: "Initial weights: `:orthogonal` matrices, or the `:default` of imitation.",
      type: {:in, [:orthogonal, :default]}
    ],
    teacher: [
      optional: Teachers,
      default: nil,
      doc:
        "File of a policy that the run learns from or stays close to, or a list of several, whose probabilities are averaged.",
      type: {:or, [:path, {:list, :path}, nil]}
    ],
    teacher_weight: [
      value: f64,
      default: 1.0,
      doc: "Factor on the divergence from the teacher.",
      min: 0,
      max: 1000,
      needs: [teacher: :given]
    ],
    teacher_to: [
      optional: f64,
      default: nil,
      doc: "Value of `:teacher_weight` at the end of the run, reached linearly.",
      min: 0,
      max: 1000,
      needs: [teacher: :given]
    ],
    teacher_temperature: [
      value: f64,
      default: 1.0,
      doc:
        "Temperature T of the divergence: logits of policy and teachers are divided by T, and the divergence is multiplied by T^2.",
      min: 0.01,
      max: 1000,
      needs: [teacher: :given]
    ]
  ],
  league: [
    opponents: [
      list: String,
      default: nil,
      doc:
        "Scripted players of the environment, and files of policies, as opponents. A name with a dot or a slash is a file.",
      type: {:or, [{:list, {:or, [:string, :atom]}}, nil]}
    ],
    past_selves: [
      value: usize,
      default: 0,
      doc: "Most earlier policies of the run that are kept as opponents.",
      min: 0,
      max: 256
    ],
    snapshot_every: [
      value: u64,
      default: 20,
      doc: "Updates between two policies that become past selves.",
      min: 1,
      max: 1_000_000_000,
      needs: [past_selves: :above_zero]
    ],
    opponent_choice: [
      value: Choice,
      default: :uniform,
      doc:
        "Choice of an opponent: `:uniform`, or `:prioritised` by how often it wins (prioritised fictitious self-play).",
      type: {:in, [:uniform, :prioritised]}
    ],
    priority: [
      value: f64,
      default: 2.0,
      doc: "Exponent `p` of a prioritised opponent's weight `(1 - win rate of the learner)^p`.",
      min: 0,
      max: 100,
      needs: [opponent_choice: [:prioritised]]
    ],
    self_play_share: [
      value: f64,
      default: 0.5,
      doc: "Share of the environments in which the present policy plays both seats, beside a league's opponents.",
      min: 0,
      below: 1
    ]
  ],
  saving: [
    save_every: [
      value: u64,
      default: 50,
      doc: "Updates between two saved states.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ]
  ],
  machine: [
    seed: [
      value: u64,
      default: 0,
      doc: "Seed of all random numbers.",
      min: 0
    ],
    threads: [
      optional: usize,
      default: nil,
      doc: "Threads of the run. `nil`: one for each core.",
      min: 1,
      max: 1024,
      resume: :free
    ],
    device: [
      value: String,
      default: "cpu",
      doc: "Device that the run computes on.",
      type: :string,
      resume: :free
    ]
  ]
);
