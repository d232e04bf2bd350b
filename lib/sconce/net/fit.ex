defmodule Sconce.Net.Fit do
  @moduledoc false
  # Options, data and reports of `Sconce.Net.fit/4` and `Sconce.Net.evaluate/4`.

  alias Sconce.{Error, Net, Options}
  alias Sconce.Net.Values

  @loss [
    loss: [
      type: {:in, [:cross_entropy, :binary, :squared]},
      default: :cross_entropy,
      doc: "The loss, see `fit/4`."
    ]
  ]

  @schema @loss ++
            [
              batch_size: [
                type: :pos_integer,
                max: 1_048_576,
                default: 32,
                doc: "Examples of a step."
              ],
              epochs: [
                type: :pos_integer,
                max: 1_000_000,
                default: 10,
                doc: "Passes over the examples."
              ],
              steps: [
                type: {:or, [:pos_integer, nil]},
                max: 1_000_000_000,
                default: nil,
                doc: "Steps of the run, instead of `:epochs`."
              ],
              learning_rate: [
                type: :float,
                above: 0,
                max: 1000,
                default: 1.0e-3,
                doc: "Learning rate after the warm-up."
              ],
              lr_schedule: [
                type: {:in, [:constant, :linear, :cosine]},
                default: :constant,
                doc: "Decay of the learning rate, to 0 at the end of the run."
              ],
              warmup_steps: [
                type: :non_neg_integer,
                max: 1_000_000_000,
                default: 0,
                doc: "Steps in which the learning rate rises linearly from 0."
              ],
              optimizer: [
                type:
                  {:in, [:adamw, :adam, :sgd, :rmsprop, :radam, :lamb, :adabelief, :yogi, :lion]},
                default: :adamw,
                doc: "Update rule of the weights, see `Sconce.Trainer`."
              ],
              weight_decay: [
                type: {:or, [:float, nil]},
                min: 0,
                max: 1000,
                default: nil,
                doc:
                  "Weight decay of kernels and matrices; biases and norms have none. `nil` is the optimizer's default."
              ],
              beta1: [
                type: {:or, [:float, nil]},
                min: 0,
                below: 1,
                default: nil,
                doc: "Decay rate of the mean of gradients; `nil` is the optimizer's default."
              ],
              beta2: [
                type: {:or, [:float, nil]},
                min: 0,
                below: 1,
                default: nil,
                doc:
                  "Decay rate of the mean of squared gradients; `nil` is the optimizer's default."
              ],
              eps: [
                type: {:or, [:float, nil]},
                min: 1.0e-30,
                max: 1,
                default: nil,
                doc: "Added to the denominator of an update; `nil` is the optimizer's default."
              ],
              momentum: [
                type: {:or, [:float, nil]},
                min: 0,
                below: 1,
                default: nil,
                doc: "Momentum of `:sgd`; `nil` is the optimizer's default."
              ],
              max_grad_norm: [
                type: {:or, [:float, nil]},
                above: 0,
                default: nil,
                doc:
                  "Largest norm of the gradient of all weights together; a longer gradient is scaled down to it. `nil` is no limit."
              ],
              val_split: [
                type: :float,
                min: 0,
                below: 1,
                default: 0.0,
                doc: "Share of the examples, drawn by the seed, that validate and do not train."
              ],
              patience: [
                type: {:or, [:pos_integer, nil]},
                default: nil,
                doc:
                  "Validations in a row without a better one before the run ends; `nil` is no limit. It needs `:val_split`."
              ],
              shuffle: [
                type: :boolean,
                default: true,
                doc: "Whether each epoch has an order of its own, drawn by the seed."
              ],
              drop_last: [
                type: :boolean,
                default: false,
                doc: "Whether the last batch of an epoch is left out if it is not full."
              ],
              seed: [
                type: :non_neg_integer,
                default: 0,
                doc: "Seed of the validation split and of the orders."
              ],
              checkpoint: [
                type: {:or, [nil, :path]},
                default: nil,
                doc: "File of the state of the run, see `fit/4`; `nil` writes none."
              ],
              checkpoint_every: [
                type: :pos_integer,
                max: 1_000_000,
                default: 1,
                doc: "Epochs between two states of `:checkpoint`."
              ],
              resume: [
                type: :boolean,
                default: false,
                doc: "Continues the run whose state is in `:checkpoint`."
              ],
              on_progress: [
                type: {:or, [{:fun, 1}, nil]},
                default: nil,
                doc: "Function of each event, see `fit/4`."
              ]
            ]

  @stopped %{"finished" => :finished, "early" => :early, "stopped" => :stopped}
  @events %{"step" => :step, "epoch" => :epoch}

  @doc "Options of `fit/4`."
  def schema, do: @schema

  @doc "Options of `evaluate/4`."
  def loss, do: @loss

  @doc "Checks the options of a run. Returns the function of events and the options of the native side."
  @spec validate!(keyword) :: {(map -> term) | nil, map}
  def validate!(opts) do
    opts = Options.validate!(opts, @schema)

    if opts[:patience] != nil and opts[:val_split] == 0,
      do: raise(ArgumentError, "option :patience needs a :val_split above 0")

    if opts[:resume] and opts[:checkpoint] == nil,
      do: raise(ArgumentError, "option :resume needs the file of :checkpoint")

    {progress, options} = Keyword.pop!(opts, :on_progress)
    path = options[:checkpoint] && Path.expand(options[:checkpoint])
    {progress, options |> Map.new() |> Map.put(:checkpoint, path)}
  end

  @doc "Inputs and targets for the native side."
  @spec examples(Net.t(), term, term, atom, atom) ::
          {:ok, {[binary], binary}} | {:error, Error.t()}
  def examples(%Net{spec: spec, outline: %{output: output}}, inputs, targets, loss, op) do
    with {:ok, data} <- Values.batch(spec, inputs, op),
         {:ok, targets} <- targets(targets, data, output, loss, op),
         do: {:ok, {data, targets}}
  end

  defp targets(:inputs, [data], _output, _loss, _op), do: {:ok, data}

  defp targets(:inputs, _several, _output, _loss, _op),
    do: raise(ArgumentError, "targets: :inputs needs a net of one input")

  defp targets(classes, _data, [_classes | places], :cross_entropy, op),
    do: Values.rows(classes, {:u, 32}, [places], "targets", op)

  defp targets(numbers, _data, [1], _loss, op),
    do: Values.rows(numbers, {:f, 32}, [[1], []], "targets", op)

  defp targets(numbers, _data, output, _loss, op),
    do: Values.rows(numbers, {:f, 32}, [output], "targets", op)

  @doc "Passes an event on. The answer `:stop` stops the run."
  @spec tell((map -> term) | nil, map, (() -> term)) :: term
  def tell(nil, _event, _stop), do: :ok

  def tell(progress, event, stop) do
    if progress.(Map.update!(event, :event, &Map.fetch!(@events, &1))) == :stop, do: stop.()
  end

  @doc "The answer of a run."
  @spec answer(Net.t(), map) :: {:ok, Net.t(), map} | {:error, Error.t()}
  def answer(net, %{failure: nil} = report) do
    report = report |> Map.delete(:failure) |> Map.update!(:stopped, &Map.fetch!(@stopped, &1))
    {:ok, net, report}
  end

  def answer(net, %{failure: failure} = report) do
    report = Map.drop(report, [:failure, :stopped])
    details = Map.merge(failure, %{net: net, report: report})
    {:error, %Error{kind: :non_finite, op: :fit, details: details}}
  end
end
