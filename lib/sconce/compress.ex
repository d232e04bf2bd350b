defmodule Sconce.Compress do
  # Over 500 lines, because the docs of its functions are the reference of the subject; their work is native.
  alias Sconce.Compress.{Catalogue, Logits, Numbers}
  alias Sconce.{Error, Native, Options}
  alias Sconce.Native.Call

  @moduledoc """
  Weights in fewer bytes: quantisation, pruning and low rank of single matrices, and the loss of distillation. Policies
  have `Sconce.Compress.Policy` and `search/3`.

  The functions work on tensors, also of networks that another library trains. A weight is `{outputs, inputs}`, as in
  PyTorch. [Smaller policies](smaller.html) compares them on one matrix.

  | function | result | source |
  |---|---|---|
  | `quantise/2`, `dequantise/1` | integer codes of 2 to 8 bits with scales | Jacob et al. 2018 |
  | `gptq/3` | codes that change the outputs of a layer least | Frantar et al. 2023 |
  | `smooth/3` | outliers of inputs moved into the weight | SmoothQuant, Xiao et al. 2023 |
  | `fake_quantise/2` | numbers on a grid, with the gradients of training | Bengio et al. 2013; LSQ, Esser et al. 2020; LSQ+, Bhalgat et al. 2020 |
  | `prune/2` | the smallest magnitudes removed | Han et al. 2015 |
  | `prune_two_four/1` | two of four inputs kept | Mishra et al. 2021 |
  | `prune_structured/2` | a smaller matrix | Li et al. 2017 |
  | `sparsity_at/2` | the schedule of gradual pruning | Zhu & Gupta 2017 |
  | `low_rank/2` | the product of two smaller matrices | Halko et al. 2011 |
  | `distillation_loss/3` | a student's loss and gradient | Hinton et al. 2015 |

  ## Tensors

  A tensor is a list of any nesting, an `Nx.Tensor`, or a map of `data` (a binary, little-endian and row-major), `shape`
  and `type`, as `Sconce.Loader` returns. Results have the form of the first argument. Numbers are 32-bit floats; a map
  of another type is an error of kind `:mismatch`.

      iex> weight = %{data: <<1.0::float-32-little, -0.5::float-32-little>>, shape: {1, 2}, type: {:f, 32}}
      iex> {:ok, quantised} = Sconce.Compress.quantise(weight)
      iex> quantised.codes
      %{data: <<127, -64>>, shape: {1, 2}, type: {:s, 8}}

  ## Errors

  Empty matrices, other shapes, and calibrations of another width are errors of kind `:mismatch`; a rank above the
  smaller side is one of kind `:out_of_range`, and NaN or an infinity one of kind `:non_finite`. Options out of range raise
  `ArgumentError`.

  ## Threads

  Calls with at most 16 KiB of numbers run on the caller's scheduler, and those with at most 256 KiB on the native threads
  of sessions. Larger ones, `gptq/3` and `low_rank/2` have a thread in the background. The last two end early with the
  calling process. Results do not depend on the number of threads.
  """

  @typedoc "A list of numbers of any nesting, a map of `data`, `shape` and `type`, or an `Nx.Tensor`."
  @type tensor :: list | struct | %{data: binary, shape: tuple, type: {atom, pos_integer}}

  @typedoc """
  A matrix as integer codes.

  | key | content |
  |---|---|
  | `codes` | `{m, n}`, signed bytes, or unsigned ones with zero points |
  | `scales` | f32: `{}`, `{m}`, or `{m, groups}` |
  | `zeros` | a zero point beside each scale, unsigned bytes; nil without |
  | `order` | columns in the order in which they form groups; nil for their own |
  | `bits`, `per`, `scale` | the options |
  | `bytes` | bytes with packed codes: `bits` for each code, 4 bytes for each scale, one for each zero point |

  A number is `scale * (code - zero)`.
  """
  @type quantised :: map

  @doc """
  Rounds each number of a matrix to the nearest code, half to even.

  The answer is a `t:quantised/0` with `error`, the relative error `|w - w'| / |w|` in Frobenius norms. A symmetric grid has
  the scale `max|w| / hi` and the codes `-hi..hi` with `hi = 2^(bits - 1) - 1`. One with zero points has the codes
  `0..2^bits - 1`, and its range is widened to hold 0. An exact 0 stays 0 in both.

  With `scale: :search` the scale of each group is the one, of those that are tried, with the least squared error: a finer grid that
  clips a few large numbers is often better. A symmetric grid of less than 8 bits then also has the code `-hi - 1`, and a
  scale below 0 where that code serves positive numbers. 4 bits in groups of 32 lose a sixth less of normal weights.

  #{Catalogue.docs(:grid)}

      iex> {:ok, quantised} = Sconce.Compress.quantise([[0.1, -0.7, 0.3], [2.0, 0.0, -1.2]], bits: 4)
      iex> quantised.codes
      [[1, -7, 3], [7, 0, -4]]
      iex> {quantised.bytes, Float.round(quantised.error, 3)}
      {11, 0.023}
      iex> Sconce.Compress.quantise([[0.1]], bits: 9)
      ** (ArgumentError) option :bits: expected an integer from 2 to 8, got: 9
  """
  @spec quantise(tensor, keyword) :: {:ok, quantised} | {:error, Error.t()}
  def quantise(weight, opts \\ []) do
    grid = grid(Catalogue.validate!(opts, :grid))

    with {:ok, weight} <- Numbers.matrix(weight, "weight", :quantise),
         {:ok, found} <-
           Call.anywhere(&Native.compress_quantise(&1, [weight.data], weight.shape, grid)) do
      {:ok, weight |> coded(found, grid) |> Map.put(:error, found.error)}
    end
  end

  @doc """
  Returns the numbers that codes stand for: `scale * (code - zero)`.

  The map is that of `quantise/2` or `gptq/3`, or one with its keys. Codes and zero points out of range, scales that
  are not above 0 and other counts are errors.

      iex> {:ok, quantised} = Sconce.Compress.quantise([[0.0, 0.25, 1.0]], bits: 2, zero_point: true)
      iex> {quantised.codes, quantised.zeros}
      {[[0, 1, 3]], [0]}
      iex> {:ok, [[zero, third, one]]} = Sconce.Compress.dequantise(quantised)
      iex> {zero, Float.round(third, 4), Float.round(one, 4)}
      {0.0, 0.3333, 1.0}
  """
  @spec dequantise(quantised) :: {:ok, tensor} | {:error, Error.t()}
  def dequantise(%{codes: codes, scales: scales, bits: bits, per: per} = quantised) do
    zeros = Map.get(quantised, :zeros)
    scale = Map.get(quantised, :scale, :largest)
    opts = [bits: bits, per: per, zero_point: zeros != nil, scale: scale]
    opts = Catalogue.validate!(opts, :grid)
    type = code_type(zeros != nil)

    with {:ok, codes} <- Numbers.read(codes, type, "codes", :dequantise),
         shape = Numbers.rows(codes),
         {:ok, scales} <- Numbers.optional(scales, {:f, 32}, "scales", :dequantise),
         {:ok, zeros} <- Numbers.optional(zeros, {:u, 8}, "zeros", :dequantise),
         given = [codes.data, scales, zeros],
         {:ok, order} <- Numbers.order(Map.get(quantised, :order), elem(shape, 1), :dequantise),
         {:ok, %{weight: weight}} <-
           Call.anywhere(&Native.compress_dequantise(&1, given, shape, order, grid(opts))) do
      {:ok, Numbers.write(weight, {:f, 32}, codes.shape, codes.form)}
    end
  end

  def dequantise(other),
    do: Options.argument!("quantised", other, "a map of :codes, :scales, :bits and :per")

  @doc """
  Quantises a matrix so that the outputs of its layer change least on calibration inputs, by GPTQ.

  `calibration` is a tensor of inputs of the layer, `{samples, inputs}`, or `{:hessian, tensor}` with `2 X^T X / samples`
  of them. One sample suffices. Columns are rounded one after the other, and those that follow compensate the errors. A
  column whose input is always 0 becomes 0.

  The answer is a `t:quantised/0` with

    * `weight` - the numbers that the codes stand for;
    * `output_error` - the mean over samples of twice the squared error of the layer's outputs;
    * `nearest_output_error` - that of `quantise/2` with the same grid.

  #{Catalogue.docs(:gptq)}

      iex> weight = for i <- 1..4, do: for(j <- 1..6, do: :math.sin(i * j))
      iex> inputs = for t <- 1..20, do: for(j <- 1..6, do: :math.cos(t) + :math.sin(t * j) / 3)
      iex> {:ok, found} = Sconce.Compress.gptq(weight, inputs, bits: 3)
      iex> found.output_error < 0.5 * found.nearest_output_error
      true
      iex> {:error, error} = Sconce.Compress.gptq(weight, [[1, 2, 3]])
      iex> Exception.message(error)
      "gptq: calibration: expected inputs of width 6, got 3"
  """
  @spec gptq(tensor, tensor | {:hessian, tensor}, keyword) ::
          {:ok, quantised} | {:error, Error.t()}
  def gptq(weight, calibration, opts \\ []) do
    opts = Catalogue.validate!(opts, :gptq)
    grid = grid(opts)
    options = %{grid: grid, damping: opts[:damping], order: opts[:order]}

    {hessian?, calibration} =
      with {:hessian, tensor} <- calibration,
           do: {true, tensor},
           else: (inputs -> {false, inputs})

    with {:ok, weight} <- Numbers.matrix(weight, "weight", :gptq),
         {:ok, calibration} <- Numbers.matrix(calibration, "calibration", :gptq),
         {given, shapes} = {[weight.data, calibration.data], {weight.shape, calibration.shape}},
         {:ok, found} <-
           Call.in_background(&Native.compress_gptq(&1, given, shapes, hessian?, options)) do
      numbers = Numbers.write(found.weight, {:f, 32}, weight.shape, weight.form)
      errors = Map.take(found, [:output_error, :nearest_output_error])
      {:ok, weight |> coded(found, grid) |> Map.put(:weight, numbers) |> Map.merge(errors)}
    end
  end

  @doc """
  Moves outliers of a layer's inputs into its weight, so that both can be quantised (SmoothQuant).

  `maxima` has the largest magnitude of each input. The answer has the `factors` by which the inputs must be divided,
  `max|x|^alpha / max|w|^(1 - alpha)`, and the `weight` with its columns multiplied by them: the outputs stay the same. An
  input that never fires, or that no output reads, has the factor 1.

  #{Catalogue.docs(:smooth)}

      iex> {:ok, smoothed} = Sconce.Compress.smooth([[1.0, 0.25], [-0.5, 0.0]], [4.0, 16.0])
      iex> smoothed
      %{factors: [2.0, 8.0], weight: [[2.0, 2.0], [-1.0, 0.0]]}
  """
  @spec smooth(tensor, tensor, keyword) :: {:ok, map} | {:error, Error.t()}
  def smooth(weight, maxima, opts \\ []) do
    [alpha: alpha] = Catalogue.validate!(opts, :smooth)

    with {:ok, weight} <- Numbers.matrix(weight, "weight", :smooth),
         {:ok, maxima} <- Numbers.read(maxima, "maxima", :smooth),
         given = [weight.data, maxima.data],
         {:ok, found} <- Call.anywhere(&Native.compress_smooth(&1, given, weight.shape, alpha)) do
      factors = Numbers.write(found.factors, {:f, 32}, {elem(weight.shape, 1)}, weight.form)
      numbers = Numbers.write(found.weight, {:f, 32}, weight.shape, weight.form)
      {:ok, %{factors: factors, weight: numbers}}
    end
  end

  @doc """
  Rounds numbers to a grid and back, as training for that grid does, with gradients on request.

  Rows of a tensor are those of its last dimension. The answer has `y`, in the shape of the numbers; the `step` and `zero`
  in use; and with `:gradient` the gradients `numbers_gradient`, `step_gradient` and `zero_gradient`, nil for what has none.

  | | given or own range | learned |
  |---|---|---|
  | symmetric | `y = s clamp(round(x / s), lo, hi)` | `y = s round(clamp(x / s, lo, hi))` |
  | with `:zero_point` | `y = s (clamp(round(x / s) + z, 0, hi) - z)` | `y = s round(clamp((x - z) / s, 0, hi)) + z` |

  The gradient of a number is that of `y` inside of the range and 0 outside. With `:learned` a step has the gradient of
  LSQ, scaled by `1 / sqrt(n hi)` for n numbers, and starts at `2 mean|x| / sqrt(hi)`; an offset has that of LSQ+.

  #{Catalogue.docs(:fake)}

      iex> {:ok, rounded} = Sconce.Compress.fake_quantise([[0.2, -0.9, 3.0]], bits: 4, step: [0.25], gradient: [[1, 1, 1]])
      iex> {rounded.y, rounded.numbers_gradient, rounded.step_gradient}
      {[[0.25, -1.0, 1.75]], [[1.0, 1.0, 0.0]], nil}
      iex> {:ok, learned} =
      ...>   Sconce.Compress.fake_quantise([[0.25, -0.5, 3.0]], bits: 4, step: [0.25], learned: true, gradient: [[1, 1, 1]])
      iex> [gradient] = learned.step_gradient
      iex> Float.round(gradient, 4) == Float.round(7 / :math.sqrt(3 * 7), 4)
      true
  """
  @spec fake_quantise(tensor, keyword) :: {:ok, map} | {:error, Error.t()}
  def fake_quantise(numbers, opts \\ []) do
    opts = Catalogue.validate!(opts, :fake)
    grid = grid(opts)
    options = %{grid: grid, learned: opts[:learned], full_range: opts[:full_range]}
    op = :fake_quantise

    with {:ok, numbers} <- Numbers.read(numbers, "numbers", op),
         shape = Numbers.rows(numbers),
         {:ok, step} <- Numbers.optional(opts[:step], {:f, 32}, "step", op),
         {:ok, zero} <- Numbers.optional(opts[:zero], {:f, 32}, "zero", op),
         {:ok, gradient} <-
           Numbers.optional(opts[:gradient], {:f, 32}, "gradient", op, numbers.shape),
         given = [numbers.data, step, zero, gradient],
         {:ok, found} <-
           Call.anywhere(&Native.compress_fake_quantise(&1, given, shape, options)) do
      {:ok, rounded(numbers, found, scales_shape(shape, grid.per))}
    end
  end

  @doc """
  Finds the policy with the fewest bytes, or the fastest one, whose loss stays within a bound: its NLL or its likeliest
  actions on a corpus, or its mean return in an environment, without a corpus.

      {:ok, %Sconce.Compress.Search{}} = Sconce.Compress.search(policy, "validation", within: {:nll, 0.01})
      {:ok, %Sconce.Compress.Search{}} = Sconce.Compress.search(policy, "validation", within: {:changed, 0.02})
      {:ok, %Sconce.Compress.Search{}} = Sconce.Compress.search(policy, nil, within: {:return, 0.05}, env: :cart_pole)

  #{Catalogue.docs(:search)}
  """
  @spec search(Sconce.Policy.t(), Path.t() | Sconce.Corpus.t() | nil, keyword) ::
          {:ok, Sconce.Compress.Search.t()} | {:error, Error.t()}
  defdelegate search(policy, corpus, opts \\ []), to: Sconce.Compress.Search, as: :run

  defp rounded(numbers, found, steps) do
    parts = [
      {:y, :y, numbers.shape},
      {:step, :steps, steps},
      {:zero, :zeros, steps},
      {:numbers_gradient, :numbers_gradient, numbers.shape},
      {:step_gradient, :steps_gradient, steps},
      {:zero_gradient, :zeros_gradient, steps}
    ]

    Map.new(parts, fn {key, name, shape} ->
      {key, Numbers.write(Map.fetch!(found, name), {:f, 32}, shape, numbers.form)}
    end)
  end

  @doc """
  Removes the numbers of a matrix with the smallest magnitudes.

  The answer has the `weight` with zeros, the `mask` with 1 for each number that is kept (unsigned bytes), and their count
  `kept`. Of equal magnitudes the first are removed.

  #{Catalogue.docs(:prune)}

      iex> {:ok, pruned} = Sconce.Compress.prune([[0.1, -0.7, 0.3], [2.0, 0.2, 1.0]], sparsity: 0.5)
      iex> pruned
      %{weight: [[0.0, -0.699999988079071, 0.0], [2.0, 0.0, 1.0]], mask: [[0, 1, 0], [1, 0, 1]], kept: 3}
  """
  @spec prune(tensor, keyword) :: {:ok, map} | {:error, Error.t()}
  def prune(weight, opts) do
    [sparsity: sparsity, per: per] = Catalogue.validate!(opts, :prune)

    with {:ok, weight} <- Numbers.matrix(weight, "weight", :prune),
         {:ok, found} <-
           Call.anywhere(&Native.compress_prune(&1, [weight.data], weight.shape, sparsity, per)),
         do: {:ok, masked(weight, found)}
  end

  @doc """
  Keeps the two largest magnitudes of each four consecutive columns (2:4 sparsity); of equal ones the first.

  The answer has the keys of `prune/2`, the kept `values` (`{m, n / 2}`), and in `index` the place of each among its four
  (0 to 3, unsigned bytes). The number of columns must be a multiple of 4.

      iex> {:ok, kept} = Sconce.Compress.prune_two_four([[1.0, -3.0, 0.5, 2.0]])
      iex> {kept.weight, kept.values, kept.index}
      {[[0.0, -3.0, 0.0, 2.0]], [[-3.0, 2.0]], [[1, 3]]}
  """
  @spec prune_two_four(tensor) :: {:ok, map} | {:error, Error.t()}
  def prune_two_four(weight) do
    with {:ok, weight} <- Numbers.matrix(weight, "weight", :prune),
         {:ok, found} <- Call.anywhere(&Native.compress_two_four(&1, [weight.data], weight.shape)) do
      {rows, cols} = weight.shape
      half = {rows, div(cols, 2)}
      values = Numbers.write(found.values, {:f, 32}, half, weight.form)
      index = Numbers.write(found.index, {:u, 8}, half, weight.form)
      {:ok, Map.merge(masked(weight, found), %{values: values, index: index})}
    end
  end

  defp masked(weight, found) do
    %{
      weight: Numbers.write(found.weight, {:f, 32}, weight.shape, weight.form),
      mask: Numbers.write(found.mask, {:u, 8}, weight.shape, weight.form),
      kept: found.kept
    }
  end

  @doc """
  Removes the rows or columns of a matrix with the smallest L2 norms; the matrix shrinks.

  The answer has the smaller `weight`, and `kept`, the ascending indices of the rows or columns that are left. Layers that
  read a removed output must lose the column of that index.

  #{Catalogue.docs(:structured)}

      iex> {:ok, shrunk} = Sconce.Compress.prune_structured([[3.0, 0.0], [0.1, 0.1], [0.0, -2.0]], sparsity: 0.34)
      iex> shrunk
      %{weight: [[3.0, 0.0], [0.0, -2.0]], kept: [0, 2]}
  """
  @spec prune_structured(tensor, keyword) :: {:ok, map} | {:error, Error.t()}
  def prune_structured(weight, opts) do
    [sparsity: sparsity, axis: axis] = Catalogue.validate!(opts, :structured)

    with {:ok, weight} <- Numbers.matrix(weight, "weight", :prune),
         {:ok, found} <-
           Call.anywhere(
             &Native.compress_structured(&1, [weight.data], weight.shape, sparsity, axis)
           ) do
      shape = put_elem(weight.shape, if(axis == :rows, do: 0, else: 1), length(found.kept))
      {:ok, %{found | weight: Numbers.write(found.weight, {:f, 32}, shape, weight.form)}}
    end
  end

  @doc """
  Returns the sparsity at a step of gradual pruning, `to + (from - to) (1 - step / steps)^3`.

  #{Catalogue.docs(:schedule)}

      iex> for step <- [0, 5, 10, 20], do: Sconce.Compress.sparsity_at(step, steps: 10, to: 0.8)
      [0.0, 0.7000000000000001, 0.8, 0.8]
  """
  @spec sparsity_at(non_neg_integer, keyword) :: float
  def sparsity_at(step, opts) when step in 0..0xFFFF_FFFF_FFFF_FFFF do
    opts = Catalogue.validate!(opts, :schedule)

    case Native.compress_sparsity_at(step, opts[:steps], {opts[:from], opts[:to]}) do
      {:ok, sparsity} -> sparsity
      {:error, error} -> raise error
    end
  end

  def sparsity_at(step, _opts), do: Options.argument!("step", step, "a non-negative integer")

  @doc """
  Approximates a matrix by the product of two smaller ones, from its largest singular values.

  The answer has `left` (`{m, rank}`, U times the roots of the singular values), `right` (`{rank, n}`), the `rank`, the
  `singular_values` that were computed, the `error` (Frobenius norm of the matrix less the product) and the `energy` (the
  part of the squared singular values that is kept). The product has fewer numbers if the rank is below
  `m * n / (m + n)`. Give one of `:rank`, `:energy` and `:error`.

  #{Catalogue.docs(:low_rank)}

      iex> weight = for i <- 1..6, do: for(j <- 1..4, do: i * j + rem(i * j, 3) / 100)
      iex> {:ok, found} = Sconce.Compress.low_rank(weight, energy: 0.999)
      iex> {found.rank, length(found.left), length(hd(found.right)), found.error < 0.1}
      {1, 6, 4, true}
      iex> {:error, error} = Sconce.Compress.low_rank(weight, rank: 5)
      iex> Exception.message(error)
      "low_rank: rank: 5 is outside 1..4"
  """
  @spec low_rank(tensor, keyword) :: {:ok, map} | {:error, Error.t()}
  def low_rank(weight, opts) do
    opts = Catalogue.validate!(opts, :low_rank)

    rank =
      case Keyword.take(opts, [:rank, :energy, :error]) do
        [rank] -> rank
        given -> Options.argument!("options", given, "one of :rank, :energy and :error")
      end

    truncation = opts |> Keyword.take([:method, :power_iterations, :seed]) |> Map.new()
    truncation = Map.put(truncation, :rank, rank)

    with {:ok, weight} <- Numbers.matrix(weight, "weight", :low_rank),
         {:ok, found} <-
           Call.in_background(
             &Native.compress_low_rank(&1, [weight.data], weight.shape, truncation)
           ) do
      {rows, cols} = weight.shape
      write = fn data, shape -> Numbers.write(data, {:f, 32}, shape, weight.form) end
      count = div(byte_size(found.singular_values), 4)

      {:ok,
       %{
         found
         | left: write.(found.left, {rows, found.rank}),
           right: write.(found.right, {found.rank, cols}),
           singular_values: write.(found.singular_values, {count})
       }}
    end
  end

  @doc """
  Returns the loss of a student that learns from teachers, and its gradient at the student's logits.

  `student` is a tensor of logits, a row of classes or bits in its last dimension; `teachers` is a tensor of the same shape,
  or `{:mean, tensors}` for the mean of the probabilities of several. The answer has

    * `soft` - KL(teacher || student) of logits over the temperature, the mean over rows, or over rows and bits;
    * `hard` - the negative log-likelihood of the target, 0 without one;
    * `loss` - `alpha * temperature^2 * soft + (1 - alpha) * hard`;
    * `gradient` - the gradient of `loss`, in the shape of the student.

  Finite logits have a finite loss.

  #{Catalogue.docs(:distillation)}

      iex> {:ok, found} = Sconce.Compress.distillation_loss([[2.0, 0.0, -1.0]], [[1.0, 1.0, -1.0]], target: [1])
      iex> {Float.round(found.soft, 4), Float.round(found.hard, 4), Float.round(found.loss, 4)}
      {0.1024, 2.1698, 1.2897}
      iex> found.gradient |> hd() |> Enum.sum() |> abs() < 1.0e-6
      true
      iex> {:ok, several} = Sconce.Compress.distillation_loss([[0.0]], {:mean, [[[3.0]], [[-3.0]]]}, kind: :bernoulli, alpha: 1)
      iex> abs(several.loss) < 1.0e-12
      true
  """
  @spec distillation_loss(tensor, tensor | {:mean, [tensor]}, keyword) ::
          {:ok, map} | {:error, Error.t()}
  def distillation_loss(student, teachers, opts \\ []) do
    opts = Catalogue.validate!(opts, :distillation)
    options = opts |> Keyword.take([:kind, :temperature, :alpha]) |> Map.new()
    op = :distillation_loss

    with {:ok, student} <- Numbers.read(student, "logits of the student", op),
         shape = Numbers.rows(student),
         {:ok, teachers} <- Logits.teachers(teachers, student.shape, op),
         {:ok, target} <-
           Numbers.optional(
             opts[:target],
             Logits.label(opts[:kind]),
             "target",
             op,
             shape_of_target(student, opts[:kind])
           ),
         given = [student.data, target | teachers],
         {:ok, found} <-
           Call.anywhere(&Native.compress_distillation_loss(&1, given, shape, options)) do
      gradient = Numbers.write(found.gradient, {:f, 32}, student.shape, student.form)
      {:ok, %{found | gradient: gradient}}
    end
  end

  # A class stands for a row, however it is nested.
  defp shape_of_target(student, :bernoulli), do: student.shape
  defp shape_of_target(_student, :categorical), do: nil

  defp grid(opts), do: opts |> Keyword.take([:bits, :per, :zero_point, :scale]) |> Map.new()

  defp code_type(true), do: {:u, 8}
  defp code_type(false), do: {:s, 8}

  defp coded(weight, found, grid) do
    scales = scales_shape(weight.shape, grid.per)
    write = fn data, type, shape -> Numbers.write(data, type, shape, weight.form) end

    %{
      codes: write.(found.codes, code_type(grid.zero_point), weight.shape),
      scales: write.(found.scales, {:f, 32}, scales),
      zeros: write.(found.zeros, {:u, 8}, scales),
      order: found.order,
      bits: grid.bits,
      per: grid.per,
      scale: grid.scale,
      bytes: found.bytes
    }
  end

  defp scales_shape(_shape, :tensor), do: {}
  defp scales_shape({rows, _cols}, :row), do: {rows}
  defp scales_shape({rows, cols}, {:group, n}), do: {rows, div(cols + n - 1, n)}
end
