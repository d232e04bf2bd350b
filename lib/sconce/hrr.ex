defmodule Sconce.HRR do
  alias Sconce.Compress.Numbers
  alias Sconce.Evolve.Tensors
  alias Sconce.{Device, Error, Native, Options}
  alias Sconce.HRR.{Card, Catalogue, Quantised}
  alias Sconce.Native.Call
  import Sconce.HRR.Card, only: [batch: 2, made: 3, made: 4, refs!: 1, run: 3, run: 4]

  @atoms Catalogue.schema(:atoms)
  @project Catalogue.schema(:project)
  @superpose Catalogue.schema(:superpose)
  @unbind Catalogue.schema(:unbind)
  @sequence Catalogue.schema(:sequence)

  @moduledoc """
  Holographic reduced representations (Plate 1995): records, sets and sequences as vectors of one fixed size.

  A record is the sum of its roles, each bound to its filler. Unbinding a role gives the filler with noise, and clean-up
  finds the most similar known vector:

      iex> alias Sconce.HRR
      iex> {:ok, roles} = HRR.atoms(3, 1024, seed: 1)
      iex> {:ok, words} = HRR.atoms(50, 1024, seed: 2)
      iex> {:ok, fillers} = HRR.take(words, [7, 21, 40])
      iex> {:ok, pairs} = HRR.bind(roles, fillers)
      iex> {:ok, record} = HRR.superpose(pairs)
      iex> {:ok, second_role} = HRR.take(roles, [1])
      iex> {:ok, noisy} = HRR.unbind(record, second_role)
      iex> {:ok, found} = HRR.cleanup(noisy, words)
      iex> found.indices
      [21]
      iex> record
      #Sconce.HRR<1 vector of 1,024 · spectrum>

  A batch is `count` vectors of `dimension` numbers in native memory. It never changes, so several processes may use
  it at once. A dimension is an even number from 8 to 16,777,216.

  ## Domains

  A batch is in the time domain or in the spectrum. It stays where it was made; an operation that needs the other
  domain transforms the batch for that call alone. `in_domain/2` keeps the result of a transform that many calls need.

  | operation | needs | result is in | cost for each vector |
  |---|---|---|---|
  | `atoms/3` | | the spectrum | random numbers |
  | `from_tensor/2`, `project/3` | | time | a copy; three Hadamard transforms |
  | `bind/2`, `unbind/3` | the spectrum | the spectrum | one product of spectra |
  | `superpose/2`, `normalise/1`, `take/2`, `concat/1` | | the domain of its batch | one sum or one copy |
  | `similarity/2`, `cleanup/2` | the domain of the items | | one dot product for each item |
  | `power/2`, `sequence/3`, `at/3`, `unitary/1` | the spectrum | the spectrum | sines and cosines |
  | `permute/2` | | the domain of its batch | a copy in time, a product in the spectrum |
  | `to_tensor/1` | time | | a copy |

  A transform to the other domain takes about as long as eight products of spectra. It keeps lengths and angles, so
  similarities are the same in both domains, up to rounding.

  ## Kinds of atoms

  | kind | numbers | a key of `bind/2` | cosine of a filler from a record of K pairs |
  |---|---|---|---|
  | `:unitary` | moduli of the spectrum are 1, phases are random | `unbind/3` is exact | `1 / sqrt(K)` |
  | `:gaussian` | normal with variance `1 / dimension` | `unbind/3` adds noise | `1 / sqrt(K + 1)` |

  The cosine of different atoms has a standard deviation of about `1 / sqrt(dimension)`: 0.011 for 8192. Its mean is 0 for
  `:gaussian` atoms and `2 / dimension` for `:unitary` ones: the first and the middle number of the spectrum are real,
  and they are 1 in all unitary atoms.

  ## On a card

  `on/2` copies a batch to an NVIDIA card or back. A card has `in_domain/2` of powers of two up to 8,192, `bind/2`,
  `unbind/3`, `superpose/2` of one batch, `quantise/1` and `similarity/2`; results stay there. All else is an error of
  kind `:unavailable` that names it. These kernels have run on the emulated card only.

  ## Tensors and errors

  Tensors are those of `Sconce.Evolve.Archive`: nested lists, maps of `data`, `shape` and `type`, or Nx tensors;
  results are in the form of the option `:as` of the batch. All numbers are 32-bit floats.

  Numbers that are not finite are errors of kind `:non_finite`, other widths and counts are of kind `:mismatch`, and
  sizes out of bounds are of kind `:out_of_range`. Vectors that operations made too large for 32 bits are found when
  they leave: `to_tensor/1`, `similarity/2`, `cleanup/2` and a normalised sum return `:non_finite`. Calls run on
  native threads; large ones are in the background. Results do not depend on the number of threads.
  """

  @enforce_keys [:ref, :count, :dimension, :domain, :form]
  defstruct @enforce_keys ++ [device: %Device{}]

  @typedoc "A batch of vectors in native memory, with its sizes."
  @type t :: %__MODULE__{
          ref: reference,
          count: pos_integer,
          dimension: pos_integer,
          domain: domain,
          form: :list | :map | :nx,
          device: Device.t()
        }

  @type domain :: :time | :spectrum
  @type tensor :: Sconce.Evolve.Archive.tensor()

  @doc """
  Makes `count` random vectors of `dimension` numbers, in the spectrum.

  A vector depends on the seed, the kind, the dimension and its index, so the first of many atoms are those of fewer.

  #{Options.docs(@atoms ++ Tensors.schema())}

      iex> {:ok, atoms} = Sconce.HRR.atoms(1000, 512, seed: 3)
      iex> {atoms.count, atoms.dimension, atoms.domain}
      {1000, 512, :spectrum}
      iex> {:error, error} = Sconce.HRR.atoms(2, 9)
      iex> Exception.message(error)
      "atoms: dimension: expected an even number, got 9"
  """
  @spec atoms(pos_integer, pos_integer, keyword) :: {:ok, t} | {:error, Error.t()}
  def atoms(count, dimension, opts \\ []) do
    [as: as, kind: kind, seed: seed] =
      opts |> Options.validate!(@atoms ++ Tensors.schema()) |> Enum.sort()

    form = Tensors.form!(as)
    sizes = {Catalogue.count!(count), Catalogue.dimension!(dimension)}
    batch(Call.in_background(&Native.hrr_atoms(&1, sizes, kind, seed)), form)
  end

  @doc """
  Copies a tensor `{count, dimension}` or `{dimension}` into a batch, in the time domain.

  #{Options.docs(Tensors.schema())}

      iex> {:ok, vector} = Sconce.HRR.from_tensor([1, 0, 0, 0, 0, 0, 0, 0])
      iex> {vector.count, vector.domain}
      {1, :time}
      iex> {:error, error} = Sconce.HRR.from_tensor([1, 2, 3])
      iex> Exception.message(error)
      "from_tensor: dimension: 3 is outside 8..16777216"
  """
  @spec from_tensor(tensor, keyword) :: {:ok, t} | {:error, Error.t()}
  def from_tensor(tensor, opts \\ []) do
    [as: as] = Options.validate!(opts, Tensors.schema())
    form = Tensors.form!(as)

    with {:ok, data, width} <- Catalogue.rows(tensor, :from_tensor),
         do: batch(Call.in_background(&Native.hrr_new(&1, data, width)), form)
  end

  @doc """
  Returns the vectors in the time domain as a tensor `{count, dimension}`.

      iex> {:ok, vectors} = Sconce.HRR.from_tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
      iex> Sconce.HRR.to_tensor(vectors)
      {:ok, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]}
  """
  @spec to_tensor(t) :: {:ok, tensor} | {:error, Error.t()}
  def to_tensor(%__MODULE__{ref: ref, dimension: dimension, form: form} = batch) do
    with {:ok, _cpu, [numbers]} <- run([batch], :to_tensor, &Native.hrr_numbers(ref, &1)),
         do: {:ok, Tensors.write(numbers, {:f, 32}, dimension, form)}
  end

  @doc """
  Returns the same vectors in a domain, `:time` or `:spectrum`. Those that are in it share their memory.

      iex> {:ok, vectors} = Sconce.HRR.from_tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
      iex> {:ok, spectrum} = Sconce.HRR.in_domain(vectors, :spectrum)
      iex> spectrum.domain
      :spectrum
  """
  @spec in_domain(t, domain) :: {:ok, t} | {:error, Error.t()}
  def in_domain(%__MODULE__{ref: ref} = batch, domain) when domain in [:time, :spectrum] do
    spectrum? = domain == :spectrum
    there = &Native.hrr_card_within(ref, &1, spectrum?)
    made([batch], :in_domain, &Native.hrr_within(ref, &1, spectrum?), there)
  end

  def in_domain(%__MODULE__{}, other),
    do: Options.argument!("domain", other, ":time or :spectrum")

  @doc """
  Returns the same vectors on a device of `Sconce.Device`, such as `:cuda`. Those that are there share their memory.

      iex> {:ok, atoms} = Sconce.HRR.atoms(2, 64)
      iex> Sconce.HRR.on(atoms, :cpu) == {:ok, atoms}
      true
  """
  @spec on(t, Device.choice()) :: {:ok, t} | {:error, Error.t()}
  def on(%__MODULE__{} = batch, device) do
    with {:ok, device} <- Device.resolve(device), do: Card.on(batch, device)
  end

  @doc """
  Projects rows of any width to vectors of `dimension` numbers, in the time domain. The dimension is a power of two.

  `tensor` is `{count, width}` or `{width}`. The projection flips signs at random and takes a Hadamard transform,
  three times (Yu et al. 2016, "Orthogonal random features"). It keeps distances and angles of rows of at most
  `dimension` numbers. Wider rows are cut into parts, whose projections are added; this keeps angles approximately.
  The same seed gives the same projection.

  #{Options.docs(@project ++ Tensors.schema())}

      iex> {:ok, features} = Sconce.HRR.project([[3, 4, 0], [3, 4, 1]], 64, seed: 5)
      iex> {:ok, [[cosine]]} = with {:ok, one} <- Sconce.HRR.take(features, [0]),
      ...>   {:ok, other} <- Sconce.HRR.take(features, [1]), do: Sconce.HRR.similarity(one, other)
      iex> Float.round(cosine, 4)
      0.9806
      iex> {:error, error} = Sconce.HRR.project([[1, 2]], 24)
      iex> Exception.message(error)
      "project: dimension: expected a power of two, got 24"
  """
  @spec project(tensor, pos_integer, keyword) :: {:ok, t} | {:error, Error.t()}
  def project(tensor, dimension, opts \\ []) do
    opts = Options.validate!(opts, @project ++ Tensors.schema())
    form = Tensors.form!(opts[:as])
    target = {Catalogue.dimension!(dimension), opts[:seed]}

    with {:ok, data, width} <- Catalogue.rows(tensor, :project) do
      work = &Native.hrr_project(&1, data, width, target, opts[:normalise])
      batch(Call.in_background(work), form)
    end
  end

  @doc """
  Returns the vectors at these indices, in this order. An index may come twice.

      iex> {:ok, atoms} = Sconce.HRR.atoms(10, 64)
      iex> {:ok, some} = Sconce.HRR.take(atoms, [3, 3, 9])
      iex> some.count
      3
      iex> {:error, error} = Sconce.HRR.take(atoms, [10])
      iex> Exception.message(error)
      "take: index: 10 is outside 0..9"
  """
  @spec take(t, tensor) :: {:ok, t} | {:error, Error.t()}
  def take(%__MODULE__{ref: ref} = batch, indices) do
    case Numbers.read(indices, {:u, 32}, "indices", :take) do
      {:ok, %{shape: {_count}, data: data}} ->
        made([batch], :take, &Native.hrr_take(ref, &1, data))

      {:ok, %{shape: shape}} ->
        Numbers.misfit("indices", "a vector", "the shape #{inspect(shape)}", :take)

      error ->
        error
    end
  end

  @doc """
  Joins batches of one dimension to one batch, in the domain of the first.

      iex> {:ok, atoms} = Sconce.HRR.atoms(10, 64)
      iex> {:ok, more} = Sconce.HRR.atoms(2, 64, seed: 1)
      iex> {:ok, all} = Sconce.HRR.concat([atoms, more])
      iex> all.count
      12
  """
  @spec concat([t, ...]) :: {:ok, t} | {:error, Error.t()}
  def concat(batches) do
    refs = refs!(batches)
    made(batches, :concat, &Native.hrr_concat(&1, refs))
  end

  @doc """
  Binds each vector to that of the other batch by circular convolution: `c[k]` is the sum over `j` of `a[j] * b[k - j]`.

  Counts are equal, or one of both is 1: a single vector is bound to each of the other batch. The result is similar to
  neither.

      iex> {:ok, shift} = Sconce.HRR.from_tensor([0, 0, 1, 0, 0, 0, 0, 0])
      iex> {:ok, vector} = Sconce.HRR.from_tensor([1, 2, 3, 4, 5, 6, 7, 8])
      iex> {:ok, bound} = Sconce.HRR.bind(vector, shift)
      iex> {:ok, [numbers]} = Sconce.HRR.to_tensor(bound)
      iex> Enum.map(numbers, &round/1)
      [7, 8, 1, 2, 3, 4, 5, 6]
  """
  @spec bind(t, t) :: {:ok, t} | {:error, Error.t()}
  def bind(%__MODULE__{ref: ref} = one, %__MODULE__{ref: other} = two) do
    there = &Native.hrr_card_bind(ref, &1, other, false)
    made([one, two], :bind, &Native.hrr_bind(ref, &1, other), there)
  end

  @doc """
  Undoes `bind/2` with these keys, by circular correlation: result `k` is the sum of `key[j] * vector[k + j]` over `j`.

  The result is exact for unitary keys, and noisy for others. `exact: true` is exact for all keys whose spectrum has
  no zero, which is an error of kind `:mismatch`; it amplifies the noise of a record.

  #{Options.docs(@unbind)}

      iex> {:ok, keys} = Sconce.HRR.atoms(1, 64, kind: :gaussian, seed: 1)
      iex> {:ok, items} = Sconce.HRR.atoms(1, 64, seed: 2)
      iex> {:ok, bound} = Sconce.HRR.bind(keys, items)
      iex> for exact <- [false, true] do
      ...>   {:ok, back} = Sconce.HRR.unbind(bound, keys, exact: exact)
      ...>   {:ok, [[cosine]]} = Sconce.HRR.similarity(back, items)
      ...>   cosine > 0.999
      ...> end
      [false, true]
  """
  @spec unbind(t, t, keyword) :: {:ok, t} | {:error, Error.t()}
  def unbind(%__MODULE__{ref: ref} = one, %__MODULE__{ref: keys} = two, opts \\ []) do
    [exact: exact] = Options.validate!(opts, @unbind)
    there = if not exact, do: &Native.hrr_card_bind(ref, &1, keys, true)
    made([one, two], :unbind, &Native.hrr_unbind(ref, &1, keys, exact), there)
  end

  @doc """
  Adds vectors. A sum is similar to each of its vectors.

  One batch gives the sum of all of its vectors, or with `:group` a sum of each group. A list of batches gives the
  sums of the vectors at the same index; a batch of one vector is added to each vector of the others. A sum that is 0
  stays 0.

  #{Options.docs(@superpose)}

      iex> {:ok, atoms} = Sconce.HRR.atoms(6, 1024)
      iex> {:ok, sums} = Sconce.HRR.superpose(atoms, group: 3, weights: [2, 1, 0])
      iex> {:ok, [[first | _others], _second]} = Sconce.HRR.similarity(sums, atoms)
      iex> {sums.count, first > 0.8}
      {2, true}
      iex> {:error, error} = Sconce.HRR.superpose([sums, atoms])
      iex> Exception.message(error)
      "superpose: count of the batches: expected 1 or 6, got 2"
  """
  @spec superpose(t | [t, ...], keyword) :: {:ok, t} | {:error, Error.t()}
  def superpose(batches, opts \\ [])

  def superpose(%__MODULE__{} = batch, opts), do: sum([batch], false, opts)
  def superpose([%__MODULE__{} | _rest] = batches, opts), do: sum(batches, true, opts)

  def superpose(other, _opts),
    do: Options.argument!("batches", other, "a batch of Sconce.HRR or a list of them")

  defp sum(batches, several?, opts) do
    options = opts |> Options.validate!(@superpose) |> Map.new()
    [first | _rest] = refs = refs!(batches)
    there = if not several?, do: &Native.hrr_card_superpose(first, &1, options)
    made(batches, :superpose, &Native.hrr_superpose(&1, refs, several?, options), there)
  end

  @doc """
  Divides each vector by its length. A vector of zeros stays one.

      iex> {:ok, vector} = Sconce.HRR.from_tensor([3, 4, 0, 0, 0, 0, 0, 0])
      iex> {:ok, unit} = Sconce.HRR.normalise(vector)
      iex> {:ok, [[a, b | _zeros]]} = Sconce.HRR.to_tensor(unit)
      iex> {Float.round(a, 6), Float.round(b, 6)}
      {0.6, 0.8}
  """
  @spec normalise(t) :: {:ok, t} | {:error, Error.t()}
  def normalise(%__MODULE__{ref: ref} = batch),
    do: made([batch], :normalise, &Native.hrr_normalise(ref, &1))

  @doc """
  Sets the moduli of the spectrum of each vector to 1, which makes it an exact key of `bind/2`.

      iex> {:ok, vectors} = Sconce.HRR.atoms(2, 64, kind: :gaussian)
      iex> {:ok, keys} = Sconce.HRR.unitary(vectors)
      iex> {:ok, bound} = Sconce.HRR.bind(keys, vectors)
      iex> {:ok, back} = Sconce.HRR.unbind(bound, keys)
      iex> {:ok, [[one, _], [_, other]]} = Sconce.HRR.similarity(back, vectors)
      iex> one > 0.999 and other > 0.999
      true
  """
  @spec unitary(t) :: {:ok, t} | {:error, Error.t()}
  def unitary(%__MODULE__{ref: ref} = batch),
    do: made([batch], :unitary, &Native.hrr_unitary(ref, &1))

  @most_shift 2 ** 62

  @doc """
  Shifts the numbers of each vector cyclically in time: number `i` moves to index `i + shift`.

      iex> {:ok, vector} = Sconce.HRR.from_tensor([1, 2, 3, 4, 5, 6, 7, 8])
      iex> {:ok, shifted} = Sconce.HRR.permute(vector, -1)
      iex> Sconce.HRR.to_tensor(shifted)
      {:ok, [[2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.0]]}
  """
  @spec permute(t, integer) :: {:ok, t} | {:error, Error.t()}
  def permute(%__MODULE__{ref: ref} = batch, shift)
      when is_integer(shift) and abs(shift) <= @most_shift,
      do: made([batch], :permute, &Native.hrr_permute(ref, &1, shift))

  def permute(%__MODULE__{}, other),
    do: Options.argument!("shift", other, "an integer from -2^62 to 2^62")

  @doc """
  Returns powers of one unitary vector: vector `i` is the given one, bound to itself `exponents[i]` times.

  Exponents are a vector of 64-bit floats. Negative ones are inverses and 0 is the neutral element; a fraction turns
  each phase of the spectrum by that part. Powers of near exponents are similar, which represents continuous numbers
  (Plate 1995; Komer et al. 2019). A vector that is not unitary is an error of kind `:mismatch`.

      iex> {:ok, axis} = Sconce.HRR.atoms(1, 1024)
      iex> {:ok, points} = Sconce.HRR.power(axis, [2.0, 2.1, 7.0])
      iex> {:ok, [[same, near, far] | _others]} = Sconce.HRR.similarity(points, points)
      iex> same > 0.999 and near > 0.9 and abs(far) < 0.2
      true
  """
  @spec power(t, tensor) :: {:ok, t} | {:error, Error.t()}
  def power(%__MODULE__{ref: ref} = batch, exponents) do
    with {:ok, exponents} <- Tensors.vector(exponents, "exponents", :power),
         do: made([batch], :power, &Native.hrr_power(ref, &1, exponents))
  end

  @doc """
  Encodes sequences: the normalised sum of all items, item `i` bound to the power `i` of a position.

  The position is one unitary vector, such as an atom. `at/3` reads an item back.

  #{Options.docs(@sequence)}

      iex> {:ok, letters} = Sconce.HRR.atoms(26, 1024, seed: 1)
      iex> {:ok, position} = Sconce.HRR.atoms(1, 1024, seed: 2)
      iex> {:ok, word} = Sconce.HRR.take(letters, [2, 0, 19])
      iex> {:ok, sequence} = Sconce.HRR.sequence(word, position)
      iex> {:ok, items} = Sconce.HRR.at(sequence, position, [0, 1, 2])
      iex> {:ok, found} = Sconce.HRR.cleanup(items, letters)
      iex> found.indices
      [2, 0, 19]
  """
  @spec sequence(t, t, keyword) :: {:ok, t} | {:error, Error.t()}
  def sequence(%__MODULE__{ref: ref} = items, %__MODULE__{ref: other} = position, opts \\ []) do
    [length: length] = Options.validate!(opts, @sequence)
    made([items, position], :sequence, &Native.hrr_sequence(ref, &1, other, length))
  end

  @doc """
  Returns the items at places of a sequence, each with the noise of all others: `places` of one sequence, or
  `places[i]` of sequence `i`. `sequence/3` has an example.
  """
  @spec at(t, t, tensor) :: {:ok, t} | {:error, Error.t()}
  def at(%__MODULE__{ref: ref} = sequence, %__MODULE__{ref: other} = position, places) do
    with {:ok, places} <- Tensors.vector(places, "places", :at),
         do: made([sequence, position], :at, &Native.hrr_at(ref, &1, other, places))
  end

  @doc """
  Returns the items with 8 bits a number, for `similarity/2` and `cleanup/2`: a quarter of the memory, and faster.

  A number is rounded to a multiple of a 127th of the largest magnitude in its vector. Queries are rounded as well.
  The cosine of atoms of 8192 numbers changes by less than 0.001. Items of unitary vectors are most exact in the
  spectrum.

      iex> {:ok, items} = Sconce.HRR.atoms(100, 1024)
      iex> {:ok, memory} = Sconce.HRR.quantise(items)
      iex> memory
      #Sconce.HRR.Quantised<100 vectors of 1,024 · spectrum · int8>
      iex> {:ok, query} = Sconce.HRR.take(items, [70])
      iex> {:ok, found} = Sconce.HRR.cleanup(query, memory)
      iex> found.indices
      [70]
  """
  @spec quantise(t) :: {:ok, Quantised.t()} | {:error, Error.t()}
  def quantise(%__MODULE__{} = batch), do: Card.quantise(batch)

  @doc """
  Returns the cosine between each query and each item, `{queries, items}`. Items are a batch, or one of `quantise/1`.

  Queries move to the domain of the items for this call. The cosine with a vector of zeros is 0.

      iex> {:ok, atoms} = Sconce.HRR.atoms(2, 8192)
      iex> {:ok, [[same, different], _second]} = Sconce.HRR.similarity(atoms, atoms)
      iex> same > 0.9999 and abs(different) < 0.06
      true
  """
  @spec similarity(t, t | Quantised.t()) :: {:ok, tensor} | {:error, Error.t()}
  def similarity(%__MODULE__{ref: ref, form: form} = own, %module{ref: items} = known)
      when module in [__MODULE__, Quantised] do
    there = &Native.hrr_card_similarity(ref, &1, items)

    with {:ok, _device, [cosines]} <-
           run([own, known], :similarity, &Native.hrr_similarity(ref, &1, items), there),
         do: {:ok, Tensors.write(cosines, {:f, 32}, known.count, form)}
  end

  @doc """
  Finds the most similar item of each query: `indices`, `{queries}` of unsigned integers of 32 bits, and
  `similarities`, `{queries}` of cosines. Items are a batch, or one of `quantise/1`. Of equally similar items the
  first is found.

      iex> {:ok, items} = Sconce.HRR.atoms(1000, 512, seed: 1)
      iex> {:ok, some} = Sconce.HRR.take(items, [17, 800])
      iex> {:ok, noise} = Sconce.HRR.atoms(2, 512, seed: 2)
      iex> {:ok, noisy} = Sconce.HRR.superpose([some, noise])
      iex> {:ok, found} = Sconce.HRR.cleanup(noisy, items)
      iex> found.indices
      [17, 800]
      iex> Enum.all?(found.similarities, &(&1 > 0.6 and &1 < 0.8))
      true
  """
  @spec cleanup(t, t | Quantised.t()) ::
          {:ok, %{indices: tensor, similarities: tensor}} | {:error, Error.t()}
  def cleanup(%__MODULE__{ref: ref, form: form} = own, %module{ref: items} = known)
      when module in [__MODULE__, Quantised] do
    with {:ok, _cpu, [indices, cosines]} <-
           run([own, known], :cleanup, &Native.hrr_cleanup(ref, &1, items)) do
      indices = Tensors.write(indices, {:u, 32}, nil, form)
      {:ok, %{indices: indices, similarities: Tensors.write(cosines, {:f, 32}, nil, form)}}
    end
  end
end
