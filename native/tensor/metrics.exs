metrics!(
  decisions: [
    kind: :counter,
    name: "sconce_decisions_total",
    unit: "decisions",
    doc: "Decisions of sessions, also those of servings."
  ],
  decision_time: [
    kind: :histogram,
    name: "sconce_decision_seconds",
    unit: "ns",
    doc: "Time of a call of a session that decides, for one game or many; requests of servings have times of their own."
  ],
  requests: [
    kind: :counter,
    name: "sconce_requests_total",
    unit: "requests",
    doc: "Requests that servings admitted."
  ],
  requests_busy: [
    kind: :counter,
    name: "sconce_requests_busy_total",
    unit: "requests",
    doc: "Requests that a full queue refused."
  ],
  deadlines_missed: [
    kind: :counter,
    name: "sconce_deadlines_missed_total",
    unit: "requests",
    doc: "Decisions and requests whose deadline passed."
  ],
  request_wait: [
    kind: :histogram,
    name: "sconce_request_wait_seconds",
    unit: "ns",
    doc: "Time from a request to the start of its batch."
  ],
  request_time: [
    kind: :histogram,
    name: "sconce_request_seconds",
    unit: "ns",
    doc: "Time from a request to its answer."
  ],
  model_hits: [
    kind: :counter,
    name: "sconce_model_hits_total",
    unit: "sessions",
    doc: "Sessions and servings that found their policy packed."
  ],
  model_misses: [
    kind: :counter,
    name: "sconce_model_misses_total",
    unit: "sessions",
    doc: "Sessions and servings for which a policy was packed."
  ],
  panics: [
    kind: :counter,
    name: "sconce_panics_total",
    unit: "panics",
    doc: "Bugs that ended a native call with an error."
  ],
  batches: [
    kind: :counter,
    name: "sconce_loader_batches_total",
    unit: "batches",
    doc: "Batches that loaders made."
  ],
  batch_frames: [
    kind: :counter,
    name: "sconce_loader_frames_total",
    unit: "frames",
    doc: "Frames of the batches that loaders made."
  ],
  batch_time: [
    kind: :histogram,
    name: "sconce_loader_batch_seconds",
    unit: "ns",
    doc: "Time in which a loader's thread made a batch."
  ],
  batch_wait: [
    kind: :histogram,
    name: "sconce_loader_wait_seconds",
    unit: "ns",
    doc: "Time that a training step or a stream waited for a batch."
  ],
  train_steps: [
    kind: :counter,
    name: "sconce_train_steps_total",
    unit: "steps",
    doc: "Training steps of imitation."
  ],
  train_frames: [
    kind: :counter,
    name: "sconce_train_frames_total",
    unit: "frames",
    doc: "Frames of the batches of training steps of imitation."
  ],
  train_step_time: [
    kind: :histogram,
    name: "sconce_train_step_seconds",
    unit: "ns",
    doc: "Time of a training step of imitation."
  ],
  env_steps: [
    kind: :counter,
    name: "sconce_env_steps_total",
    unit: "steps",
    doc: "Steps of environments in runs that learn from play."
  ],
  jobs: [
    kind: :counter,
    name: "sconce_jobs_total",
    unit: "jobs",
    doc: "Calls that native threads ran for Elixir."
  ],
  job_wait: [
    kind: :histogram,
    name: "sconce_job_wait_seconds",
    unit: "ns",
    doc: "Time that such a call waited for a thread."
  ]
);
