defmodule Sconce.Net do
  alias Sconce.{Error, Native, Options}
  alias Sconce.Evolve.Tensors
  alias Sconce.Native.Call
  alias Sconce.Net.{Fit, Formats, Outline, Spec, Values}

  @formats {:in, [:f32, :int8]}
  @storage [
    storage: [
      type: {:or, [@formats, {:tuple, [{:in, [:auto]}, {:list, @formats}]}]},
      default: :f32,
      doc:
        "Format of weights in memory: 32-bit floats, or 8 bits (see above). `{:auto, formats}` is the one of these formats " <>
          "with the fastest run on this machine, see `Sconce.Tuner`."
    ],
    tuner: [
      type: {:or, [:boolean, nil]},
      default: nil,
      doc:
        "Whether `{:auto, formats}` is measured; `false` takes the first format, and `nil` is the setting of `Sconce.Config`."
    ]
  ]
  @seed [seed: [type: :non_neg_integer, default: 0, doc: "Seed of the initial weights."]]

  @moduledoc """
  Small networks for images, signals, sensors and tokens, on a CPU.

      iex> {:ok, net} = Sconce.Net.init([input: [1, 8, 8], layers: [
      ...>   {:conv, 4, 3, stride: 2, padding: 1, bias: false},
      ...>   {:batch_norm, activation: :relu},
      ...>   {:max_pool, 2},
      ...>   :flatten,
      ...>   {:dense, 3}]], seed: 1)
      iex> net
      #Sconce.Net<1x8x8 -> conv, batch_norm, max_pool, flatten, dense -> 3 · 95 parameters · f32>
      iex> image = List.duplicate(List.duplicate(0.5, 8), 8)
      iex> {:ok, output} = Sconce.Net.run(net, [image])
      iex> length(output)
      3

  `Sconce.Net.Spec` describes inputs and layers, and `Sconce.Zoo` has thirty such networks. `fit/4` trains a net and
  `evaluate/4` measures one. Weights of a network of PyTorch come by `from_weights/3`: names and layouts are those of
  `torch.nn.Sequential`, behind `layers.`. The number in a name counts the layers of its list, those without weights
  too. A function that is an option of a layer has no number.

  A net is a handle of weights in native memory. No process owns it. Calls of several processes run side by side, each
  in an arena of its own. At most 64 arenas are kept for later calls.

  ## 8 bits

  With `storage: :int8` the weights of convolutions in one group, of dense layers, of the inputs of recurrent layers and of the
  products of attention are integers from -127 to 127, with one scale for each filter. Each call rounds the input of such a
  layer to 255 multiples of one scale, which it measures, so no samples are needed. All else stays in 32-bit floats. On the
  thirty networks of `Sconce.Zoo`, untrained and with one input each, outputs were within 1.6 % of the largest. On the CPU
  that was measured, with AVX2, 8 bits save memory, not time: a call takes up to a third longer. Sums are integers, so all CPUs
  have the same. `weights/2` and `save/2` keep 32-bit floats.

      iex> {:ok, net} = Sconce.Net.init([input: [64], layers: [{:dense, 64}]], storage: :int8)
      iex> {net.outline.parameters, net.bytes}
      {4160, 4864}

  A call computes on one thread. It runs on the scheduler of the caller if its estimated time is at most 200 us, and on a
  dirty scheduler otherwise.
  """

  @enforce_keys [:ref, :spec, :outline, :storage, :bytes, :arena_bytes, :inline?]
  defstruct @enforce_keys

  @typedoc "A network in native memory: its declaration, its outline, and the bytes of weights and of one arena."
  @type t :: %__MODULE__{
          ref: reference,
          spec: Spec.t(),
          outline: Outline.t(),
          storage: :f32 | :int8,
          bytes: non_neg_integer,
          arena_bytes: non_neg_integer,
          inline?: boolean
        }

  @typedoc "Nested lists of numbers, a map of `:data`, `:shape` and `:type`, an Nx tensor, or a binary of 32-bit floats."
  @type tensor :: term

  @typedoc "A tensor with a first axis of examples, or for a net of several inputs a map or a keyword list of them by name."
  @type examples :: tensor | %{optional(atom | String.t()) => tensor} | keyword

  @doc """
  Returns a checked declaration, see `Sconce.Net.Spec.new/1`.

      iex> Sconce.Net.new(input: [12], layers: [{:dense, 4, activation: :tanh}])
      #Sconce.Net.Spec<12 -> dense>
  """
  @spec new(Spec.t() | keyword) :: Spec.t()
  def new(spec), do: Spec.new(spec)

  @doc """
  Creates a net with random weights: the initial weights of PyTorch, from the given seed.

  Layers that do not fit each other are an error of kind `:mismatch`.

  #{Options.docs(@seed ++ @storage)}

      iex> {:ok, net} = Sconce.Net.init([input: [2], layers: [{:dense, 1, bias: false}]], seed: 3)
      iex> net.outline.parameters
      2
      iex> {:error, error} = Sconce.Net.init(input: [1, 4, 4], layers: [{:conv, 2, 5}])
      iex> error.kind
      :mismatch
  """
  @spec init(Spec.t() | keyword, keyword) :: {:ok, t} | {:error, Error.t()}
  def init(spec, opts \\ []) do
    opts = Options.validate!(opts, @seed ++ @storage)
    spec = Spec.new(spec)
    made(&Native.net_init(Spec.to_native(spec), opts[:seed], &1), spec, opts)
  end

  @doc """
  Loads a net that `save/2` has written.

  #{Options.docs(@storage)}

      iex> {:error, error} = Sconce.Net.load("nowhere.safetensors")
      iex> error.kind
      :not_found
  """
  @spec load(Path.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def load(path, opts \\ []) do
    opts = Options.validate!(opts, @storage)
    path = Options.path!(path)
    made(&Native.net_load(path, &1), nil, opts)
  end

  @doc """
  Saves a net as one file in the safetensors format, with its declaration. The file has 32-bit floats.

      iex> path = Path.join(System.tmp_dir!(), "sconce-net-doctest.safetensors")
      iex> {:ok, net} = Sconce.Net.init([input: [2], layers: [{:dense, 1}]], seed: 3)
      iex> Sconce.Net.save(net, path)
      :ok
      iex> {:ok, same} = Sconce.Net.load(path)
      iex> File.rm!(path)
      iex> Sconce.Net.run(same, [1, 2]) == Sconce.Net.run(net, [1, 2])
      true
  """
  @spec save(t, Path.t()) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{ref: ref}, path), do: Native.net_save(ref, Options.path!(path))

  @doc """
  Runs a net on one input, and returns its output in the form of the input.

  The input has the declared shape, or this shape with a first axis of 1. A net of several inputs takes a map or a keyword
  list of them by name. Any shape will do for a binary of 32-bit floats. A number that is not finite is an error.

      iex> {:ok, net} = Sconce.Net.init(inputs: [a: [2], b: [3]], layers: [{:inputs, a: [{:dense, 4}], b: []}, {:dense, 1}])
      iex> {:ok, [_number]} = Sconce.Net.run(net, a: [1, 2], b: [3, 4, 5])
      iex> {:error, error} = Sconce.Net.run(net, a: [1, 2], b: [3, 4])
      iex> Exception.message(error)
      "run: input b: expected the shape {3}, got {2}"
  """
  @spec run(t, tensor | %{optional(atom | String.t()) => tensor} | keyword) ::
          {:ok, tensor} | {:error, Error.t()}
  def run(%__MODULE__{ref: ref, spec: %Spec{} = spec, inline?: inline?} = net, inputs) do
    %Outline{} = outline = net.outline

    with {:ok, data, form} <- Values.read(spec, inputs),
         {:ok, output} <- compute(ref, data, inline?),
         do: {:ok, Values.write(output, outline.output, form)}
  end

  defp compute(ref, data, true) do
    # `:full`: no arena is free, and a new one takes longer than a run.
    with :full <- Native.net_run(ref, data), do: Native.net_run_dirty(ref, data)
  end

  defp compute(ref, data, _inline?), do: Native.net_run_dirty(ref, data)

  @doc """
  Trains a copy of a net on examples, and returns it with a report.

  Inputs have a first axis more than their declaration, `{n, ..}`: nested lists, a map of `:data`, `:shape` and `:type`, an
  Nx tensor, or a binary of 32-bit floats; a net of several inputs takes them by name, as `run/2` does. Targets have a
  first axis of `n` too. For an output of shape `{c, ..}` they are

  | `:loss` | mean over | targets |
  |---|---|---|
  | `:cross_entropy` | examples and places, of logits of `c` classes | classes `{n, ..}` from 0; a binary has 32-bit integers |
  | `:binary` | all numbers, which are logits | numbers `{n, c, ..}` from 0 to 1 |
  | `:squared` | all numbers | numbers `{n, c, ..}` |

  `:inputs` as targets is the one input itself, for an autoencoder.

  A native thread of low priority does the work while the caller waits. Batch norms use the statistics of the batch and
  move the running ones. The same seed gives the same weights to the last bit, regardless of the number of threads.
  The returned net has `storage: :f32`.

  The report has

    * `stopped` - `:finished`, `:early` (by `:patience`) or `:stopped`;
    * `steps`, `epochs`, `seconds` - what was done;
    * `losses` - the loss of the batch of each step, before its update;
    * `validation` - after each epoch its `step`, `loss` and `accuracy`, which is nil for `:squared`;
    * `step` - the step whose weights are returned: that of the best validation, else the last.

  `:on_progress` gets `%{event: :step, step: .., epoch: .., loss: .., learning_rate: ..}` and `%{event: :epoch, step: ..,
  epoch: .., loss: .., validation: ..}`. If it is slower than the run, events of steps are left out. If it returns `:stop`,
  the run stops after the present step. A run also stops when the process of the caller ends.

  With `:checkpoint` the state of the run is in one safetensors file: the weights, those of the best validation, the moments of
  the optimizer, all losses and the place in the epoch. It is written before the first step, after each epoch and when the run ends
  or is stopped, to a file beside it that then takes its name, so a run that is killed leaves the state before.
  `resume: true` continues it: with the same net, examples and options a resumed run gives the same weights as one that was
  never interrupted, to the last bit. Of the options only `:epochs`, `:steps`, `:patience`, `:checkpoint_every` and
  `:on_progress` may change; a schedule that falls to 0 then has the new length. The weights of the given net are not used. A
  missing, damaged or foreign file is an error that names it, and so is an existing file without `resume: true`. A state that
  cannot be written ends the run with an error that names it, also at the end of the run: the state before it stays, and
  `resume: true` goes on from there when there is room, to the same weights. A run with `:checkpoint` computes a digest of the examples at its
  start.

  A number of an example that is not finite and a class that the output does not have are errors. A loss, a gradient or a
  weight that is not finite ends the run with an error of kind `:non_finite`; its `details` have `what`, `value`, the
  `step`, the `report` and the `net` of the best validation, else of the end of the last epoch, else the initial one.

  #{Options.docs(Fit.schema())}

      iex> {:ok, net} = Sconce.Net.init([input: [2], layers: [{:dense, 8, activation: :tanh}, {:dense, 2}]], seed: 1)
      iex> inputs = [[0, 0], [0, 1], [1, 0], [1, 1]]
      iex> {:ok, net, report} = Sconce.Net.fit(net, inputs, [0, 1, 1, 0], epochs: 200, learning_rate: 0.05)
      iex> {report.stopped, report.steps, List.last(report.losses) < 0.1}
      {:finished, 200, true}
      iex> {:ok, found} = Sconce.Net.evaluate(net, inputs, [0, 1, 1, 0])
      iex> found.accuracy
      1.0
      iex> path = Path.join(System.tmp_dir!(), "sconce-fit-#{System.unique_integer([:positive])}.safetensors")
      iex> {:ok, _net, _report} = Sconce.Net.fit(net, inputs, [0, 1, 1, 0], epochs: 3, checkpoint: path)
      iex> {:ok, _net, report} = Sconce.Net.fit(net, inputs, [0, 1, 1, 0], epochs: 5, checkpoint: path, resume: true)
      iex> File.rm!(path)
      iex> report.steps
      5
  """
  @spec fit(t, examples, examples | :inputs, keyword) ::
          {:ok, t, map} | {:error, Error.t()}
  def fit(%__MODULE__{ref: ref, spec: %Spec{} = spec} = net, inputs, targets, opts \\ []) do
    %Outline{} = net.outline
    {progress, options} = Fit.validate!(opts)

    with {:ok, examples} <- Fit.examples(net, inputs, targets, options.loss, :fit),
         start = &Native.net_fit(&1, ref, examples, options, progress != nil),
         {:ok, {made, report}} <- Call.in_background(start, &Fit.tell(progress, &1, &2)),
         {:ok, net} <- made(fn _storage -> {:ok, made} end, spec, storage: :f32),
         do: Fit.answer(net, report)
  end

  @doc """
  Returns the mean `loss` of a net on examples, and the `accuracy`: the share of targets that are the likeliest class, nil
  for `:squared`. Inputs and targets are those of `fit/4`. The packed form of the net computes them.

  #{Options.docs(Fit.loss())}

      iex> {:ok, net} = Sconce.Net.init(input: [2], layers: [:relu])
      iex> Sconce.Net.evaluate(net, [[1, 2], [3, -4]], [[1, 2], [3, 2]], loss: :squared)
      {:ok, %{loss: 1.0, accuracy: nil}}
  """
  @spec evaluate(t, examples, examples | :inputs, keyword) ::
          {:ok, %{loss: float, accuracy: float | nil}} | {:error, Error.t()}
  def evaluate(
        %__MODULE__{ref: ref, spec: %Spec{}, outline: %Outline{}} = net,
        inputs,
        targets,
        opts \\ []
      ) do
    [loss: loss] = Options.validate!(opts, Fit.loss())

    with {:ok, examples} <- Fit.examples(net, inputs, targets, loss, :evaluate),
         do: Call.in_background(&Native.net_evaluate(&1, ref, examples, loss))
  end

  @doc """
  Returns the layers of a declaration or of a net with shapes, parameters and operations. Layers that do not fit each
  other are an error of kind `:mismatch`, which names both shapes.

      iex> {:ok, outline} = Sconce.Net.outline(input: [3, 8, 8], layers: [{:conv, 4, 3}, :flatten, {:dense, 2}])
      iex> outline
      #Sconce.Net.Outline<3 layers -> 2 · 402 parameters · 8,352 flops>
      iex> Enum.map(outline.layers, &{&1.name, &1.output})
      [{"layers.0", [4, 6, 6]}, {"layers.1", [144]}, {"layers.2", [2]}]
  """
  @spec outline(Spec.t() | keyword | t) :: {:ok, Outline.t()} | {:error, Error.t()}
  def outline(%__MODULE__{outline: outline}), do: {:ok, outline}

  def outline(spec) do
    with {:ok, outline} <- spec |> Spec.new() |> Spec.to_native() |> Native.net_outline(),
         do: {:ok, Outline.from_native(outline)}
  end

  @doc """
  Returns the outline as a table. Raises the error of layers that do not fit.

      iex> table = Sconce.Net.summary(input: [3, 8, 8], layers: [{:conv, 4, 3}, :flatten, {:dense, 2}])
      iex> String.split(table, "\\n")
      ["layer     kind     output  parameters  flops",
       "layers.0  conv     4x6x6          112  7,776",
       "layers.1  flatten  144              0      0",
       "layers.2  dense    2              290    576",
       "all                2              402  8,352"]
  """
  @spec summary(Spec.t() | keyword | t | Outline.t()) :: String.t()
  def summary(%Outline{} = outline), do: Outline.table(outline)

  def summary(net) do
    case outline(net) do
      {:ok, outline} -> Outline.table(outline)
      {:error, error} -> raise error
    end
  end

  @doc """
  Returns sizes: `parameters` and `flops`, `bytes` of the packed weights, `arena_bytes` of the memory of one call, and
  `storage`.

      iex> {:ok, net} = Sconce.Net.init(input: [2], layers: [{:dense, 1}])
      iex> info = Sconce.Net.info(net)
      iex> {info.parameters, info.flops, info.storage}
      {3, 4, :f32}
  """
  @spec info(t) :: map
  def info(%__MODULE__{outline: %Outline{} = outline} = net) do
    net
    |> Map.take([:storage, :bytes, :arena_bytes])
    |> Map.merge(Map.take(outline, [:parameters, :flops]))
  end

  @doc """
  Returns the weights by name, as 32-bit floats before packing. `:as` is their form:

  #{Options.docs(Tensors.schema())}

      iex> {:ok, net} = Sconce.Net.init(input: [2], layers: [{:dense, 3}, :relu])
      iex> {:ok, weights} = Sconce.Net.weights(net, as: :binaries)
      iex> for {name, tensor} <- Enum.sort(weights), do: {name, tensor.shape}
      [{"layers.0.bias", {3}}, {"layers.0.weight", {3, 2}}]
  """
  @spec weights(t, keyword) :: {:ok, %{String.t() => tensor}} | {:error, Error.t()}
  def weights(%__MODULE__{ref: ref}, opts \\ []) do
    [as: as] = Options.validate!(opts, Tensors.schema())
    form = Tensors.form!(as)

    with {:ok, weights} <- Native.net_weights(ref) do
      {:ok,
       Map.new(weights, fn {name, shape, data} -> {name, Values.write(data, shape, form)} end)}
    end
  end

  @doc """
  Creates a net of weights by name, in any form of a tensor. A missing weight, one that the declaration does not have, and
  one of another shape are errors.

  #{Options.docs(@storage)}

      iex> spec = [input: [2], layers: [{:dense, 1}]]
      iex> {:ok, net} = Sconce.Net.from_weights(spec, %{"layers.0.weight" => [[1, 2]], "layers.0.bias" => [0.5]})
      iex> Sconce.Net.run(net, [3, 4])
      {:ok, [11.5]}
  """
  @spec from_weights(Spec.t() | keyword, %{String.t() => tensor}, keyword) ::
          {:ok, t} | {:error, Error.t()}
  def from_weights(spec, weights, opts \\ []) do
    opts = Options.validate!(opts, @storage)
    spec = Spec.new(spec)

    with {:ok, weights} <- Values.weights(weights) do
      made(&Native.net_from_weights(Spec.to_native(spec), weights, &1), spec, opts)
    end
  end

  defp made(make, spec, opts) do
    with {:ok, {ref, info}, storage} <-
           Formats.made(opts[:storage], spec, opts[:tuner], make) do
      {:ok,
       %__MODULE__{
         ref: ref,
         spec: spec || Spec.from_native(info.spec),
         outline: Outline.from_native(info.outline),
         storage: storage,
         bytes: info.bytes,
         arena_bytes: info.arena_bytes,
         inline?: info.inline
       }}
    end
  end

  defimpl Inspect do
    alias Sconce.{Figures, Net}

    def inspect(%{spec: spec, outline: outline, storage: storage}, _opts) do
      "#Sconce.Net<#{Net.Spec.summary(spec)} -> #{Net.Spec.text(outline.output)} · " <>
        "#{Figures.grouped(outline.parameters)} parameters · #{storage}>"
    rescue
      _built_by_hand -> "#Sconce.Net<>"
    end
  end
end
