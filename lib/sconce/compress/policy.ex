defmodule Sconce.Compress.Policy do
  alias Sconce.Compress.{Catalogue, Shrink}
  alias Sconce.{Device, Error, Native, Options, Policy}
  alias Sconce.Native.Call
  alias Sconce.Trainer.Settings

  @moduledoc """
  Whole policies in fewer bytes.

      {:ok, small} = Sconce.Compress.Policy.quantise(policy, bits: 4, calibration: "corpus")
      :ok = Sconce.Policy.save(small.policy, "small.safetensors")

  `quantise/2` leaves fewer bits of each weight, `shrink/2` fewer weights, `low_rank/2` products of two smaller matrices. `average/2` is the mean of several policies.

  A policy whose matrices are integer codes is used like any other:

  | what | how it reads the codes |
  |---|---|
  | `Sconce.Session`, `Sconce.Serving` | as they are, where the CPU reads them faster than f32; with `weights: :f32` as numbers |
  | `Sconce.Policy.forward/3`, `Sconce.Trainer.evaluate/3`, a card | as the numbers that the codes stand for |
  | `Sconce.Policy.save/3` | writes the codes: about a quarter or an eighth of the bytes |
  | `Sconce.Trainer`, `Sconce.PPO` | continue from the numbers and learn f32 weights |

  A session rounds the inputs of a matrix too: to 16 bits before codes of 8 bits, and to 8 bits in blocks of 32 before codes
  of 4 bits. Its logits therefore differ a little from those of `forward/3`.

  A step reads some matrices together, such as the hidden layers of independent heads. If their codes have other forms, it
  reads them as f32; `matrices` of `Sconce.Session.info/1` shows it.

  `prune/2` removes weights instead. A policy of which each four inputs of an output have two weights (2:4) is used like any
  other too: a session reads its matrices in half of the bytes where this CPU is faster with them, and a checkpoint has
  about half of the bytes. Its logits are those of f32.

  Matrices with fewer than 32 inputs, tables of embeddings, norms, biases and convolutions keep their f32.
  """

  @typedoc """
  A matrix: its `name`, `outputs` and `inputs`; `bits` of a code, 32 without codes; `group`, the inputs that share a scale,
  nil for all; `bytes` in a checkpoint; `error`, the relative error `|w - w'| / |w|` of the codes that it got. With a
  calibration `output_error` is the relative error of its outputs on the calibration's inputs, and
  `nearest_output_error` that of rounding to the nearest codes; both are nil without, and for inputs that are always 0.
  """
  @type matrix :: %{
          name: String.t(),
          outputs: pos_integer,
          inputs: pos_integer,
          bits: 4 | 8 | 32,
          group: pos_integer | nil,
          bytes: pos_integer,
          error: float,
          output_error: float | nil,
          nearest_output_error: float | nil
        }

  @typedoc "A `policy` with codes, its `matrices`, and the bytes of all its weights: `bytes` now, and `before` in f32."
  @type quantised :: %{
          policy: Policy.t(),
          matrices: [matrix],
          bytes: pos_integer,
          before: pos_integer
        }

  @typedoc """
  A matrix: its `name`, `outputs` and `inputs`; `sparsity`, the part of its weights that are 0; `bytes` in a checkpoint;
  `error`, the relative error `|w - w'| / |w|` of its weights. With a calibration `output_error` is the relative error of
  its outputs on the calibration's inputs, and `magnitude_output_error` that of keeping the largest magnitudes; both are
  nil without, and for inputs that are always 0.
  """
  @type pruned_matrix :: %{
          name: String.t(),
          outputs: pos_integer,
          inputs: pos_integer,
          sparsity: float,
          bytes: pos_integer,
          error: float,
          output_error: float | nil,
          magnitude_output_error: float | nil
        }

  @typedoc "A pruned `policy`, its `matrices`, and the bytes of all its weights: `bytes` now, and `before` in f32."
  @type pruned :: %{
          policy: Policy.t(),
          matrices: [pruned_matrix],
          bytes: pos_integer,
          before: pos_integer
        }

  @typedoc """
  A matrix: its `name`, `outputs` and `inputs`; the `rank` of its product, nil for a matrix that is stored whole; `bytes` in a
  checkpoint; `error`, the relative error `|w - w'| / |w|` of its weights. With a calibration `output_error` is the
  relative error of its outputs on the calibration's inputs, and `svd_output_error` that of the nearest product to the
  matrix; both are nil without, and for inputs that are always 0.
  """
  @type factored_matrix :: %{
          name: String.t(),
          outputs: pos_integer,
          inputs: pos_integer,
          rank: pos_integer | nil,
          bytes: pos_integer,
          error: float,
          output_error: float | nil,
          svd_output_error: float | nil
        }

  @typedoc "A `policy` of products, its `matrices`, and the bytes of all its weights: `bytes` now, and `before` in f32."
  @type factored :: %{
          policy: Policy.t(),
          matrices: [factored_matrix],
          bytes: pos_integer,
          before: pos_integer
        }

  @doc """
  Rounds the matrices of a policy to integer codes.

  Without a calibration each weight gets the nearest code. With one, the policy first reads games of the corpus with its
  memory carried; then GPTQ rounds each matrix so that its outputs change least (`Sconce.Compress.gptq/3`). Matrices that
  `:only` and `:except` leave out keep the codes that they have, so that a second call can give some matrices other bits.

  The given policy stays as it is. The work has a thread in the background, and ends early with the calling process.

  #{Catalogue.docs(:policy)}

      iex> spec = [embedding: {:vector, 64}, backbone: :mlp, hidden_sizes: [64], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, small} = Sconce.Compress.Policy.quantise(policy, bits: 4)
      iex> small.policy
      #Sconce.Policy<vector 64 -> mlp 64 -> go(1) · 8.4 k weights · int4 · cpu>
      iex> {small.before, small.bytes}
      {33540, 5676}
      iex> hd(small.matrices).name
      "backbone.layers.0.dense.weight"
      iex> {:error, error} = Sconce.Compress.Policy.quantise(policy, only: ["backbone.weight_ih"])
      iex> Exception.message(error)
      "quantise: a matrix whose name begins with backbone.weight_ih not found"

  Kinds of error: `:not_found` for names that no matrix has, for a policy without a matrix of 32 inputs and for a corpus
  that does not exist; `:mismatch` for a corpus of other inputs; `:non_finite` for weights that are NaN or infinite;
  `:unavailable` for a calibration of a backbone that only reads whole windows.
  """
  @spec quantise(Policy.t(), keyword) :: {:ok, quantised} | {:error, Error.t()}
  def quantise(policy, opts \\ [])

  def quantise(%Policy{device: %Device{}} = policy, opts) do
    alone!(opts)
    opts = Catalogue.validate!(opts, :policy)
    coding = opts |> Keyword.take([:bits, :scale, :damping]) |> Map.new()
    coding = Map.put(coding, :names, names(opts))
    coding = Map.put(coding, :group, group(opts[:group], opts[:bits]))
    smaller(policy, opts, :nearest_output_error, &Native.policy_quantise(&1, &2, coding, &3))
  end

  def quantise(other, _opts), do: Options.argument!("policy", other, "a policy")

  @doc """
  Removes weights of the matrices of a policy: sets them to 0.

  `pattern: :two_four` keeps two weights of each four consecutive inputs (Mishra et al. 2021); of a last group of one or two
  inputs all stay. `sparsity: 0.8` keeps a fifth of the weights of each output, wherever they are; sessions and checkpoints
  hold their zeros like other numbers.

  Without a calibration the largest magnitudes stay. With one, the policy first reads games of the corpus with its memory
  carried; then weights are removed whose loss changes the outputs least, and the others of their output make up for it
  (SparseGPT, Frantar and Alistarh 2023). It uses the second moments of the inputs as GPTQ does, so it costs as much.

  Training recovers a part of what pruning loses, but moves weights away from 0.

  #{Catalogue.docs(:policy_prune)}

      iex> spec = [embedding: {:vector, 64}, backbone: :mlp, hidden_sizes: [64], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, sparse} = Sconce.Compress.Policy.prune(policy, pattern: :two_four)
      iex> {sparse.before, sparse.bytes, hd(sparse.matrices).sparsity}
      {33540, 18060, 0.5}
      iex> {:ok, session} = Sconce.Session.open(sparse.policy, seed: 1)
      iex> {:ok, info} = Sconce.Session.info(session)
      iex> info.weights in [:two_four, :f32]
      true
      iex> {:error, error} = Sconce.Compress.Policy.prune(policy, sparsity: 0.5, only: ["backbone.weight_ih"])
      iex> Exception.message(error)
      "prune: a matrix whose name begins with backbone.weight_ih not found"

  Kinds of error: those of `quantise/2`.
  """
  @spec prune(Policy.t(), keyword) :: {:ok, pruned} | {:error, Error.t()}
  def prune(policy, opts)

  def prune(%Policy{device: %Device{}} = policy, opts) do
    alone!(opts)
    opts = Catalogue.validate!(opts, :policy_prune)
    pruning = %{keep: keep!(opts), names: names(opts), damping: opts[:damping]}
    smaller(policy, opts, :magnitude_output_error, &Native.policy_prune(&1, &2, pruning, &3))
  end

  def prune(other, _opts), do: Options.argument!("policy", other, "a policy")

  @doc """
  Replaces the matrices of a policy by products `left right` of two smaller ones, `[outputs, rank]` and `[rank, inputs]`.

  Without a calibration a product is the nearest of its rank to the matrix (Eckart and Young 1936). With one, the policy first
  reads games of the corpus with its memory carried, and the product is the nearest in the outputs of the matrix: their
  `rank` largest principal directions stay. The inputs of a layer depend on each other, so far smaller ranks suffice. One of `:rank`,
  `:energy` and `:error` has to be given. A matrix whose product would not be smaller stays whole, with rank nil.

  A checkpoint stores both factors. A session multiplies them one after the other if both have at most three quarters of the
  numbers of the matrix. A matrix skips inputs of 0 and its second factor cannot, so leave out matrices whose inputs are mostly 0, such as
  those of one-hot embeddings, with `:except`. `Sconce.Policy.forward/3`, cards and runs read the product of both.

  #{Catalogue.docs(:policy_low_rank)}

      iex> spec = [embedding: {:vector, 64}, backbone: :mlp, hidden_sizes: [64], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, small} = Sconce.Compress.Policy.low_rank(policy, rank: 8)
      iex> {hd(small.matrices).rank, small.before, small.bytes}
      {8, 33540, 8964}
      iex> {:ok, session} = Sconce.Session.open(small.policy, seed: 1)
      iex> {:ok, _action} = Sconce.Session.act(session, List.duplicate(0.5, 64))
      iex> {:error, error} = Sconce.Compress.Policy.low_rank(policy, rank: 8, only: ["backbone.weight_ih"])
      iex> Exception.message(error)
      "low_rank: a matrix whose name begins with backbone.weight_ih not found"

  Kinds of error: those of `quantise/2`.
  """
  @spec low_rank(Policy.t(), keyword) :: {:ok, factored} | {:error, Error.t()}
  def low_rank(policy, opts)

  def low_rank(%Policy{device: %Device{}} = policy, opts) do
    alone!(opts)
    opts = Catalogue.validate!(opts, :policy_low_rank)

    rank =
      case Keyword.take(opts, [:rank, :energy, :error]) do
        [rank] -> rank
        given -> Options.argument!("options", given, "one of :rank, :energy and :error")
      end

    factoring = %{rank: rank, names: names(opts), damping: opts[:damping]}
    smaller(policy, opts, :svd_output_error, &Native.policy_low_rank(&1, &2, factoring, &3))
  end

  def low_rank(other, _opts), do: Options.argument!("policy", other, "a policy")

  @doc """
  Returns a policy with some matrices of others, given as `{name, policy}` of the same Spec.

      iex> spec = [embedding: {:vector, 64}, backbone: :mlp, hidden_sizes: [64], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, small} = Sconce.Compress.Policy.quantise(policy, bits: 4)
      iex> {:ok, mixed} = Sconce.Compress.Policy.mix(policy, [{"backbone.layers.0.dense.weight", small.policy}])
      iex> mixed
      #Sconce.Policy<vector 64 -> mlp 64 -> go(1) · 8.4 k weights · int4 · cpu>
      iex> {:error, error} = Sconce.Compress.Policy.mix(policy, [{"backbone.weight", small.policy}])
      iex> Exception.message(error)
      "mix: weight backbone.weight not found"

  Kinds of error: `:not_found` for a weight that a policy does not have, `:mismatch` for one of another shape.
  """
  @spec mix(Policy.t(), [{String.t(), Policy.t()}]) :: {:ok, Policy.t()} | {:error, Error.t()}
  def mix(policy, others)

  def mix(%Policy{device: %Device{} = device} = policy, others) when is_list(others) do
    others = Enum.map(others, &other!/1)

    with {:ok, ref} <- Call.run(&Native.policy_mix(policy.ref, &1, others)),
         do: Policy.wrap(ref, device)
  end

  def mix(%Policy{device: %Device{}}, others),
    do: Options.argument!("policies", others, "a list of {name, policy}")

  def mix(other, _others), do: Options.argument!("policy", other, "a policy")

  defp other!({name, %Policy{ref: ref}}) when is_binary(name), do: {name, ref}
  defp other!(other), do: Options.argument!("policies", other, "{name, policy}")

  @typedoc """
  Units of a policy: `name`, the beginning of the names of the weights that compute them; `units` before; `kept`, the
  indices of those that stay; `removed`, the number of the others; `importance`, the part of the importance of all units
  that stays. With a calibration `output_error` is the relative error of the outputs of the matrices that read the units,
  after their columns were adjusted; nil without.
  """
  @type layer :: %{
          name: String.t(),
          units: pos_integer,
          kept: [non_neg_integer],
          removed: non_neg_integer,
          importance: float,
          output_error: float | nil
        }

  @typedoc "A smaller `policy`, its `layers`, and the weights and bytes in f32, now and before."
  @type shrunk :: %{
          policy: Policy.t(),
          layers: [layer],
          weights: pos_integer,
          weights_before: pos_integer,
          bytes: pos_integer,
          before: pos_integer
        }

  @doc """
  Returns a policy with fewer units in each layer: structured pruning, after which all matrices are smaller.

  A unit leaves with the rows that compute it, its bias and norm, and the columns that read it, in all layers of a residual
  stream alike, and in the heads. The result is a policy of a smaller Spec. Give it to `Sconce.Trainer` as `policy:`, and
  the large policy as `teacher:`, to recover what the removed units did.

  | backbone | units | number of the Spec |
  |---|---|---|
  | `:mlp` | of each layer; with `residual`, layers of one width in a row share theirs | `:hidden_sizes` |
  | `:gru`, `:lstm` | of each layer | `:hidden_size` |
  | `:min_gru`, `:min_lstm` | of the residual stream | `:hidden_size` |
  | `:sliding_window`, `:causal_transformer` | of the residual stream, and of each feed-forward layer, which is four times as wide | `:hidden_size` |
  | the same | heads of each layer | `:num_heads` |

  The most important units stay. Without a calibration the importance of a unit is the norm of the rows that compute it
  times the norm of the columns that read it; Li et al. 2017 ("Pruning Filters for Efficient ConvNets") take the rows alone.
  With one the policy reads games of the corpus, and the importance is the energy that the unit adds to the outputs of the
  matrices that read it. Least squares then adjust the columns of the units that stay, so that these outputs change
  least. A frame suffices; units that never fire are compared by their norms. Of units of the same importance, such as
  those of weights of 0, the first stay.

  Widths of the embedding, of hidden layers of heads and of a critic stay as they are, and so does the width of a head of
  attention, which need not divide `:hidden_size`. Codes are read as numbers, and 2:4 is lost with the columns
  that leave, so quantise or prune afterwards.

  #{Catalogue.docs(:shrink)}

      iex> spec = [embedding: {:vector, 64}, backbone: :gru, hidden_size: 64, num_layers: 1, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, small} = Sconce.Compress.Policy.shrink(policy, keep: 0.5)
      iex> small.policy
      #Sconce.Policy<vector 64 -> gru 32x1 -> go(1) · 11.6 k weights · cpu>
      iex> {small.weights_before, small.weights, small.before, small.bytes}
      {29313, 11649, 117252, 46596}
      iex> Enum.map(small.layers, &{&1.name, &1.units, &1.removed})
      [{"backbone.l0", 64, 32}]
      iex> {:error, error} = Sconce.Compress.Policy.shrink(policy, hidden_size: 65)
      iex> Exception.message(error)
      "shrink: hidden_size: 65 is outside 1..64"

  Kinds of error: `:unavailable` for other backbones, and for a residual stream that is as wide as the embedded frame;
  `:out_of_range` and `:mismatch` for sizes that do not fit the
  policy; `:non_finite` for weights that are NaN or infinite; `:not_found` and `:mismatch` for a corpus that does not exist
  or has other inputs. Raises `ArgumentError` without a size, and for two of `:keep`, `:hidden_size` and `:hidden_sizes`.
  """
  @spec shrink(Policy.t(), keyword) :: {:ok, shrunk} | {:error, Error.t()}
  def shrink(policy, opts \\ [])

  def shrink(%Policy{device: %Device{}} = policy, opts) do
    alone!(opts)
    opts = Catalogue.validate!(opts, :shrink)
    Shrink.shrink(policy, opts, calibration(opts[:calibration], opts))
  end

  def shrink(other, _opts), do: Options.argument!("policy", other, "a policy")

  @doc """
  Returns the mean of the weights of policies of one Spec, which may score better than each of them: of checkpoints of
  one run (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization"), or of runs from the
  same policy (Wortsman et al. 2022, "Model soups"). The mean of policies that were trained apart is worth nothing, because
  their units differ.

  A run keeps a mean of its own steps with `ema_decay:`, see `Sconce.Trainer`.

  All weights are averaged, including tables of embeddings and of priors. Statistics of a normaliser are not: they are part of
  the Spec, must be equal, and stay. So does the frame delay. Codes are read as numbers, and a mean of different 2:4 is none. The result is on the device of the
  first policy.

  #{Catalogue.docs(:average)}

      iex> spec = [embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, a} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, b} = Sconce.Policy.init(spec, seed: 2)
      iex> {:ok, mean} = Sconce.Compress.Policy.average([a, b], weights: [3, 1])
      iex> mean
      #Sconce.Policy<vector 4 -> mlp 8 -> go(1) · 681 weights · cpu>
      iex> {:error, error} = Sconce.Compress.Policy.average([a, b], weights: [0, 0])
      iex> error.kind
      :out_of_range

  Kinds of error: `:mismatch` for policies of other Specs, statistics or frame delays, and for another number of weights than
  policies; `:out_of_range` for weights below 0 and for a sum of 0; `:non_finite` for weights that are NaN or infinite.
  """
  @spec average([Policy.t()], keyword) :: {:ok, Policy.t()} | {:error, Error.t()}
  def average(policies, opts \\ []), do: Shrink.average(policies, opts)

  # Changes the matrices on a CPU. The error of the simpler rule stands under its own name.
  defp smaller(%Policy{device: device} = policy, opts, simpler, native) do
    calibration = calibration(opts[:calibration], opts)

    with {:ok, policy} <- Policy.to(policy, :cpu),
         {:ok, {ref, matrices}} <-
           Call.in_background(&native.(policy.ref, &1, calibration)),
         {:ok, own} <- Policy.wrap(ref, policy.device),
         {:ok, own} <- Policy.to(own, device) do
      matrices = Enum.map(matrices, &matrix(&1, simpler))
      {:ok, Map.merge(%{policy: own, matrices: matrices}, bytes(policy.num_weights, matrices))}
    end
  end

  # Options of a calibration have no effect without one.
  defp alone!(opts) do
    for name <- [:calibration_frames, :frame_delay, :damping],
        Keyword.keyword?(opts) and Keyword.has_key?(opts, name) and opts[:calibration] == nil,
        do: raise(ArgumentError, "option #{inspect(name)} needs :calibration")
  end

  defp names(opts), do: opts |> Keyword.take([:only, :except]) |> Map.new()

  defp keep!(opts) do
    case {opts[:pattern], opts[:sparsity]} do
      {pattern, nil} when pattern != nil ->
        pattern

      {nil, sparsity} when sparsity != nil ->
        {:sparsity, sparsity}

      _both_or_none ->
        raise ArgumentError, "prune needs one of the options :pattern and :sparsity"
    end
  end

  defp group(nil, 4), do: 32
  defp group(group, _bits), do: group

  defp calibration(nil, _opts), do: nil

  defp calibration(corpus, opts) do
    %{
      corpus: Settings.folder(corpus),
      frames: opts[:calibration_frames],
      frame_delay: opts[:frame_delay]
    }
  end

  defp matrix(%{output_error: errors} = matrix, simpler) do
    [own, other] = errors || [nil, nil]
    Map.merge(matrix, %{:output_error => own, simpler => other})
  end

  # All weights have 4 bytes, except for those of matrices with codes or in 2:4.
  defp bytes(num_weights, matrices) do
    before = 4 * num_weights
    saved = for matrix <- matrices, do: 4 * matrix.outputs * matrix.inputs - matrix.bytes
    %{before: before, bytes: before - Enum.sum(saved)}
  end
end
