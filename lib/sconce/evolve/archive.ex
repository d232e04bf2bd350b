defmodule Sconce.Evolve.Archive do
  alias Sconce.{Error, Native, Options, Store}
  alias Sconce.Evolve.{Catalogue, Kept, Picture, Stored, Tensors}
  alias Sconce.Native.Call
  alias Sconce.Trainer.Curve.Page

  @new Catalogue.schema(:new)
  @sample Catalogue.schema(:sample)
  @vary Catalogue.schema(:vary)
  @novelty Catalogue.schema(:novelty)
  @svg Catalogue.schema(:svg)

  @moduledoc """
  The best solution that is known for each cell of a space of measures: an archive of elites (MAP-Elites, Mouret & Clune
  2015).

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4, 4]}, ranges: [{0, 1}, {0, 1}], solution_size: 3)
      iex> solutions = [[0.5, 0.5, 0.5], [1.0, 2.0, 3.0]]
      iex> {:ok, added} = Sconce.Evolve.Archive.add(archive, solutions, [7.5, 8.0], [[0.1, 0.1], [0.9, 0.2]])
      iex> added
      %{status: [2, 2], improvement: [7.5, 8.0]}
      iex> archive
      #Sconce.Evolve.Archive<2 of 16 cells · 2 measures · solutions of 3 · best 8.0>

  | space | cells |
  |---|---|
  | `{:grid, sizes}` | boxes of equal size; a measure outside of its range belongs to the nearest cell |
  | `{:voronoi, count}` | the points that are nearest to one of `count` centroids, which k-means spreads over the ranges (Vassiliades et al. 2018) |
  | `{:centroids, rows}` | the same with given centroids |
  | `{:unstructured, most}` | balls of radius `:distance` around the measures of their first elites, made where a candidate lands outside of all others until there are `most`; no range need be known |

  Distances are Euclidean, and the search is exact: bring measures of different units to one scale first. Balls overlap;
  measures in several belong to the one that was made first, so that a new ball takes nothing from others. An archive
  that is full keeps its balls, and a candidate outside of them is not stored. Its coverage is the share of `most`.

  ## Which candidate stays

  A candidate replaces the elite of its cell if its objective exceeds the threshold of the cell. That is the objective of
  the elite, or, with a `:learning_rate` below 1, a number that each accepted candidate moves towards its own objective
  (CMA-MAE, Fontaine & Nikolaidis 2023). A batch has the result of its candidates one by one, in their order. An equal
  objective replaces nothing, so of equal candidates the first one stays. A bonus, such as for novelty, belongs into the
  choice of parents: add the plain objective.

  ## Tensors

  Arguments are lists of any nesting, Nx tensors, or maps of `data` (a binary, little-endian and row-major), `shape` and
  `type`. Solutions are 32-bit floats; objectives and measures are 64-bit floats. Results have the form of the option
  `:as`.

  ## Errors

  An objective, a measure or a winning solution that is not finite is an error of kind `:non_finite` that names its
  candidate, and one beyond 1.0e150 is of kind `:out_of_range`; nothing of the batch is stored. Other widths are of kind
  `:mismatch`, and an empty archive has no elite to draw: `:not_found`. Any process may use an archive, one call at a
  time; a call during another one is of kind `:busy`. Calls run on native threads; large ones are in the background.
  """

  @enforce_keys [:ref, :cells, :measures, :solution_size, :form]
  defstruct @enforce_keys ++ [:options]

  @typedoc "An archive in native memory, with its sizes, and the options of `new/1` if they made it."
  @type t :: %__MODULE__{
          ref: reference,
          cells: pos_integer,
          measures: pos_integer,
          solution_size: pos_integer,
          form: :list | :map | :nx,
          options: keyword | nil
        }

  @typedoc "A list of numbers of any nesting, a map of `data`, `shape` and `type`, or an `Nx.Tensor`."
  @type tensor :: list | struct | %{data: binary, shape: tuple, type: {atom, pos_integer}}

  @typedoc """
  Elites, a row each.

  | key | content |
  |---|---|
  | `solutions` | `{elites, solution_size}`, 32-bit floats |
  | `objectives` | `{elites}`, 64-bit floats |
  | `measures` | `{elites, measures}`, 64-bit floats |
  | `cells` | `{elites}`, unsigned integers of 32 bits; in a grid the last measure is the fastest |
  """
  @type elites :: %{solutions: tensor, objectives: tensor, measures: tensor, cells: tensor}

  @doc """
  Creates an empty archive.

  #{Options.docs(@new ++ Tensors.schema())}

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:voronoi, 50}, ranges: [{-1, 1}, {-1, 1}], solution_size: 8)
      iex> archive.cells
      50
      iex> {:error, error} = Sconce.Evolve.Archive.new(cells: {:grid, [5]}, ranges: [{1, 0}], solution_size: 8)
      iex> Exception.message(error)
      "archive: the range of measure 0: expected a number above 1, got 0"

  Cells that are made where candidates land:

      iex> opts = [cells: {:unstructured, 100}, distance: 0.5, measures: 2, solution_size: 1]
      iex> {:ok, archive} = Sconce.Evolve.Archive.new(opts)
      iex> {:ok, added} = Sconce.Evolve.Archive.add(archive, [[1], [2], [3]], [5, 6, 7], [[0, 0], [9, 40], [0.3, 0.4]])
      iex> {added.status, Sconce.Evolve.Archive.stats(archive)}
      {[2, 2, 1], {:ok, %{elites: 2, cells: 100, coverage: 0.02, qd_score: 13.0, best: 7.0}}}
  """
  @spec new(keyword) :: {:ok, t} | {:error, Error.t()}
  def new(opts) do
    opts = Options.validate!(opts, @new ++ Tensors.schema())
    form = Tensors.form!(opts[:as])

    options = %{
      space: Catalogue.space(opts[:cells], opts),
      solution_size: opts[:solution_size],
      learning_rate: opts[:learning_rate],
      threshold_min: opts[:threshold_min],
      offset: opts[:qd_offset]
    }

    with {:ok, made} <- Call.in_background(&Native.archive_new(&1, options)),
         do: {:ok, %{archive(made, form) | options: Keyword.delete(opts, :as)}}
  end

  defp archive({ref, {cells, measures, size}}, form),
    do: %__MODULE__{ref: ref, cells: cells, measures: measures, solution_size: size, form: form}

  @doc """
  Offers candidates to their cells.

  `solutions` is `{batch, solution_size}`, `objectives` is `{batch}`, and `measures` is `{batch, measures}`. The answer has
  two tensors `{batch}`:

    * `status` - 2 for the first elite of a cell, 1 for one that has replaced another, 0 for one that is not stored;
    * `improvement` - objective minus threshold at the turn of the candidate; in an empty cell without a threshold it is
      the objective, and where a full `:unstructured` archive has no cell it is -1.0e150.

  An example with a tie, and one that is refused:

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [2]}, ranges: [{0, 1}], solution_size: 1)
      iex> Sconce.Evolve.Archive.add(archive, [[1], [2], [3]], [5.0, 5.0, 6.0], [[0.2], [0.3], [0.4]])
      {:ok, %{status: [2, 0, 1], improvement: [5.0, 0.0, 1.0]}}
      iex> {:error, error} = Sconce.Evolve.Archive.add(archive, [[1, 2]], [5.0], [[0.2]])
      iex> Exception.message(error)
      "add: solutions: expected rows of 1, got the shape {1, 2}"
  """
  @spec add(t, tensor, tensor, tensor) ::
          {:ok, %{status: tensor, improvement: tensor}} | {:error, Error.t()}
  def add(%__MODULE__{ref: ref} = archive, solutions, objectives, measures) do
    %{solution_size: size, measures: width, form: form} = archive

    with {:ok, solutions} <- Tensors.rows(solutions, {:f, 32}, size, "solutions", :add),
         {:ok, objectives} <- Tensors.vector(objectives, "objectives", :add),
         {:ok, measures} <- Tensors.rows(measures, {:f, 64}, width, "measures", :add),
         given = [solutions, objectives, measures],
         {:ok, [status, improvement]} <- Call.in_background(&Native.archive_add(ref, &1, given)) do
      {:ok,
       %{
         status: Tensors.write(status, {:u, 8}, nil, form),
         improvement: Tensors.write(improvement, {:f, 64}, nil, form)
       }}
    end
  end

  @doc """
  Returns figures that each addition keeps up to date.

  | key | content |
  |---|---|
  | `elites`, `cells` | cells with an elite, and all cells |
  | `coverage` | their ratio |
  | `qd_score` | sum over elites of the objective minus `:qd_offset` |
  | `best` | highest objective that was ever stored; nil if there is none |

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1, qd_offset: -1)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[1], [2]], [0.5, 1.5], [[0.2], [0.3]])
      iex> Sconce.Evolve.Archive.stats(archive)
      {:ok, %{elites: 2, cells: 4, coverage: 0.5, qd_score: 4.0, best: 1.5}}
  """
  @spec stats(t) :: {:ok, map} | {:error, Error.t()}
  def stats(%__MODULE__{ref: ref}), do: Native.archive_stats(ref)

  @doc """
  Returns all elites, in the order in which their cells were first filled.

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 2)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[1, 2], [3, 4]], [0.5, 1.5], [[0.9], [0.3]])
      iex> Sconce.Evolve.Archive.elites(archive)
      {:ok, %{solutions: [[1.0, 2.0], [3.0, 4.0]], objectives: [0.5, 1.5], measures: [[0.9], [0.3]], cells: [3, 1]}}
  """
  @spec elites(t) :: {:ok, elites} | {:error, Error.t()}
  def elites(%__MODULE__{ref: ref} = archive) do
    with {:ok, columns} <- Call.in_background(&Native.archive_elites(ref, &1)),
         do: {:ok, rows(columns, archive)}
  end

  @doc """
  Draws elites uniformly, with replacement. The answer is like that of `elites/1`.

  #{Options.docs(@sample)}

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      iex> {:error, error} = Sconce.Evolve.Archive.sample(archive, 2)
      iex> Exception.message(error)
      "sample: an elite (the archive is empty) not found"
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[7]], [0.5], [[0.9]])
      iex> {:ok, drawn} = Sconce.Evolve.Archive.sample(archive, 2, seed: 3)
      iex> drawn.solutions
      [[7.0], [7.0]]
  """
  @spec sample(t, pos_integer, keyword) :: {:ok, elites} | {:error, Error.t()}
  def sample(%__MODULE__{ref: ref} = archive, count, opts \\ []) do
    [seed: seed] = Options.validate!(opts, @sample)
    count = Tensors.count!(count)

    with {:ok, columns} <- Call.in_background(&Native.archive_sample(ref, &1, count, seed)),
         do: {:ok, rows(columns, archive)}
  end

  defp rows([solutions, objectives, measures, cells], archive) do
    %{solution_size: size, measures: width, form: form} = archive

    %{
      solutions: Tensors.write(solutions, {:f, 32}, size, form),
      objectives: Tensors.write(objectives, {:f, 64}, nil, form),
      measures: Tensors.write(measures, {:f, 64}, width, form),
      cells: Tensors.write(cells, {:u, 32}, nil, form)
    }
  end

  @doc """
  Returns the solution of the elite with the highest objective, `{solution_size}`; of equal ones the first.

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[0.5], [2.0]], [1, 3], [[0.1], [0.9]])
      iex> Sconce.Evolve.Archive.best(archive)
      {:ok, [2.0]}
  """
  @spec best(t) :: {:ok, tensor} | {:error, Error.t()}
  def best(%__MODULE__{ref: ref, form: form}) do
    with {:ok, [solution]} <- Call.in_background(&Native.archive_best(ref, &1)),
         do: {:ok, Tensors.write(solution, {:f, 32}, nil, form)}
  end

  @doc """
  Returns the elites in the cells of measures `{rows, measures}`: `elites` like those of `elites/1`, and `found`, a tensor
  `{rows}` with 1 where the cell has an elite. Rows without an elite have no row in `elites`.

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[7]], [0.5], [[0.9]])
      iex> {:ok, answer} = Sconce.Evolve.Archive.retrieve(archive, [[0.1], [0.8]])
      iex> {answer.found, answer.elites.solutions}
      {[0, 1], [[7.0]]}
  """
  @spec retrieve(t, tensor) :: {:ok, %{found: tensor, elites: elites}} | {:error, Error.t()}
  def retrieve(%__MODULE__{ref: ref, measures: width} = archive, measures) do
    with {:ok, measures} <- Tensors.rows(measures, {:f, 64}, width, "measures", :retrieve),
         {:ok, [found | columns]} <-
           Call.in_background(&Native.archive_retrieve(ref, &1, measures)) do
      found = Tensors.write(found, {:u, 8}, nil, archive.form)
      {:ok, %{found: found, elites: rows(columns, archive)}}
    end
  end

  @doc """
  Returns how new measures `{rows, measures}` are: `{rows}`, the mean Euclidean distance to the measures of the nearest
  elites (Lehman & Stanley 2011).

  With fewer elites than `:nearest` it is the mean over all. The time grows with the number of rows and elites.
  The death of the caller ends it.

  #{Options.docs(@novelty)}

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 4}], solution_size: 1)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[1], [2]], [0, 0], [[0.5], [3.5]])
      iex> Sconce.Evolve.Archive.novelty(archive, [[0.5], [2.5]], nearest: 1)
      {:ok, [0.0, 1.0]}
  """
  @spec novelty(t, tensor, keyword) :: {:ok, tensor} | {:error, Error.t()}
  def novelty(%__MODULE__{ref: ref, measures: width} = archive, measures, opts \\ []) do
    [nearest: nearest] = Options.validate!(opts, @novelty)

    with {:ok, measures} <- Tensors.rows(measures, {:f, 64}, width, "measures", :novelty),
         {:ok, [found]} <-
           Call.in_background(&Native.archive_novelty(ref, &1, measures, nearest)),
         do: {:ok, Tensors.write(found, {:f, 64}, nil, archive.form)}
  end

  @doc """
  Returns children of random pairs of elites, `{count, solution_size}`: the first parent, noise, and a random step along
  the line to the second parent (iso+line, Vassiliades & Mouret 2018), or another crossover.

  #{Options.docs(@vary)}

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 2)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[0.25, 0.5]], [0], [[0.5]])
      iex> Sconce.Evolve.Archive.vary(archive, 2, iso_sigma: 0, line_sigma: 0)
      {:ok, [[0.25, 0.5], [0.25, 0.5]]}
  """
  @spec vary(t, pos_integer, keyword) :: {:ok, tensor} | {:error, Error.t()}
  def vary(%__MODULE__{ref: ref} = archive, count, opts \\ []) do
    opts = Options.validate!(opts, @vary)
    count = Tensors.count!(count)
    variation = Catalogue.variation(opts)
    stream = {opts[:seed], opts[:generation]}

    # A struct that was built by hand has no size; the native side refuses its reference.
    size = archive.solution_size || 0

    with {:ok, [children]} <-
           Call.in_background(
             &Native.archive_vary(ref, &1, variation, {count, 4 * size * count}, stream)
           ),
         do: {:ok, Tensors.write(children, {:f, 32}, archive.solution_size, archive.form)}
  end

  @doc """
  Offers the elites of another archive to this one, in their order, and returns the number of those that were stored.

  Another space or another size of solutions is an error of kind `:mismatch`. The other archive stays as it is. A merge of
  an archive with itself is always an error of kind `:busy`.

      iex> [one, other] =
      ...>   for score <- [1.0, 2.0] do
      ...>     {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      ...>     {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[score]], [score], [[0.5]])
      ...>     archive
      ...>   end
      iex> {Sconce.Evolve.Archive.merge(one, other), Sconce.Evolve.Archive.merge(one, other)}
      {{:ok, 1}, {:ok, 0}}
  """
  @spec merge(t, t) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def merge(%__MODULE__{ref: ref}, %__MODULE__{ref: other}),
    do: Call.in_background(&Native.archive_merge(ref, &1, other))

  @doc """
  Removes a share of the elites, those with the lowest objectives, and returns their number. Their cells are empty again.

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[0.5], [2.0]], [1, 3], [[0.1], [0.9]])
      iex> Sconce.Evolve.Archive.prune(archive, 0.5)
      {:ok, 1}
      iex> {:ok, elites} = Sconce.Evolve.Archive.elites(archive)
      iex> elites.objectives
      [3.0]
  """
  @spec prune(t, number) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def prune(%__MODULE__{ref: ref}, share) do
    (is_number(share) and share >= 0 and share <= 1) ||
      Options.argument!("share", share, "a number from 0 to 1")

    Call.in_background(&Native.archive_prune(ref, &1, share / 1))
  end

  @doc """
  Returns a new archive with other cells that holds the best elites of this one: with fewer cells a smaller one. Options
  are those of `new/1` without `:solution_size`.

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[0.5], [2.0]], [1, 3], [[0.1], [0.4]])
      iex> {:ok, small} = Sconce.Evolve.Archive.compress(archive, cells: {:grid, [2]}, ranges: [{0, 1}])
      iex> small
      #Sconce.Evolve.Archive<1 of 2 cells · 1 measure · solutions of 1 · best 3.0>
  """
  @spec compress(t, keyword) :: {:ok, t} | {:error, Error.t()}
  def compress(%__MODULE__{ref: ref, solution_size: size}, opts) do
    opts = Options.keyword!(opts)

    with {:ok, made} <- new([solution_size: size || 1] ++ opts),
         {:ok, [solutions, objectives, measures, _cells]} <-
           Call.in_background(&Native.archive_elites(ref, &1)),
         given = [solutions, objectives, measures],
         {:ok, _added} <- Call.in_background(&Native.archive_add(made.ref, &1, given)),
         do: {:ok, made}
  end

  @doc """
  Writes the archive to a file: safetensors with a manifest and a digest. The file is the whole new one, or the old one
  stays. A failed write is an error of kind `:io` or `:not_found`.

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      iex> path = Path.join(System.tmp_dir!(), "sconce-archive-#{System.pid()}.safetensors")
      iex> :ok = Sconce.Evolve.Archive.save(archive, path)
      iex> {:ok, loaded} = Sconce.Evolve.Archive.load(path)
      iex> {loaded.cells, File.rm(path)}
      {4, :ok}

  With `{store, name}` it goes into a `Sconce.Store`, in chunks of which a later save writes only those that have changed:

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 1)
      iex> folder = Path.join(System.tmp_dir!(), "sconce-store-#{System.unique_integer([:positive])}")
      iex> {:ok, store} = Sconce.Store.open(folder)
      iex> :ok = Sconce.Evolve.Archive.save(archive, {store, "elites"})
      iex> {:ok, loaded} = Sconce.Evolve.Archive.load({store, "elites"})
      iex> {loaded.cells, File.rm_rf!(folder) != []}
      {4, true}

  The name stands for the whole new archive or for the old one. A save commits the store, with what others have put into it.
  Chunks that it no longer needs lie on disk until
  `Sconce.Store.compact/2`. A store takes archives that `new/1` has made, with a learning rate of 1 and cells that are not
  `:unstructured`; for others the error is of kind `:unavailable`. Offer the elites of a file to a new archive by `merge/2`.
  """
  @spec save(t, Path.t() | {Store.t(), String.t()}) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{} = archive, {%Store{} = store, name}),
    do: Stored.save(archive, store, name)

  def save(%__MODULE__{ref: ref}, path),
    do: Kept.save(path, &Native.archive_save(ref, &1, &2))

  @doc """
  Reads the archive of a file, equal to the bit, or with `{store, name}` that of a `Sconce.Store`; `save/2` has an example.

  A file that is cut or changed is an error of kind `:corrupt`, and another kind of file is one of kind `:corrupt` or
  `:mismatch`. From a store, chunks are read one after the other. Elites and all that follows from them are equal to the
  bit; the sum behind `qd_score` is computed again, and its last bits may differ. So are the centroids of
  `{:voronoi, count}`: an error of kind `:mismatch` says if a machine computes others.

  #{Options.docs(Tensors.schema())}
  """
  @spec load(Path.t() | {Store.t(), String.t()}, keyword) :: {:ok, t} | {:error, Error.t()}
  def load(from, opts \\ [])

  def load({%Store{} = store, name}, opts) do
    opts = Options.validate!(opts, Tensors.schema())
    Tensors.form!(opts[:as])
    Stored.load(store, name, &new(&1 ++ opts))
  end

  def load(path, opts),
    do: Kept.load(path, opts, &Native.archive_load/2, &archive/2)

  @doc """
  Returns a heat map of an archive of two measures as the text of an SVG file: the objective of each cell as a color, and
  nothing where no elite is. Other archives are errors of kind `:mismatch`.

  A picture has at most 200 x 200 pixels. In a finer grid each shows the highest objective of its cells.

  #{Options.docs(@svg)}

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4, 4]}, ranges: [{0, 1}, {0, 1}], solution_size: 1)
      iex> {:ok, _added} = Sconce.Evolve.Archive.add(archive, [[1]], [0.5], [[0.2, 0.3]])
      iex> {:ok, svg} = Sconce.Evolve.Archive.svg(archive, title: "Jumps")
      iex> svg =~ "Jumps" and svg =~ "1 of 16 cells"
      true
  """
  @spec svg(t, keyword) :: {:ok, String.t()} | {:error, Error.t()}
  def svg(%__MODULE__{ref: ref} = archive, opts \\ []) do
    opts = Options.validate!(opts, @svg)

    with {:ok, raster} <- Call.in_background(&Native.archive_raster(ref, &1)),
         {:ok, stats} <- stats(archive),
         do: {:ok, Picture.svg(raster, stats, opts)}
  end

  @doc """
  Writes `svg/2` to a file. A path that does not end in `.svg` is an error of kind `:mismatch`, and a failed write is one
  of kind `:io`.

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [4, 4]}, ranges: [{0, 1}, {0, 1}], solution_size: 1)
      iex> path = Path.join(System.tmp_dir!(), "sconce-archive-#{System.pid()}.svg")
      iex> {Sconce.Evolve.Archive.write(archive, path), File.rm(path)}
      {:ok, :ok}
  """
  @spec write(t, Path.t(), keyword) :: :ok | {:error, Error.t()}
  def write(%__MODULE__{} = archive, path, opts \\ []) do
    path = Options.path!(path)

    with :ok <- Page.check(path, :write_svg),
         {:ok, svg} <- svg(archive, opts),
         do: Page.write(svg, path, :write_svg)
  end

  defimpl Inspect do
    alias Sconce.Evolve.Archive
    alias Sconce.Figures

    def inspect(%{cells: cells, measures: measures, solution_size: size} = archive, _opts)
        when is_integer(cells) and is_integer(measures) and is_integer(size) do
      {filled, best} = figures(archive, Figures.counted(cells, "cell"))
      sizes = "#{Figures.counted(measures, "measure")} · solutions of #{Figures.grouped(size)}"
      "#Sconce.Evolve.Archive<#{filled} · #{sizes}#{best}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Evolve.Archive<>"

    defp figures(archive, cells) do
      case Archive.stats(archive) do
        {:ok, %{best: nil}} -> {"0 of #{cells}", ""}
        {:ok, stats} -> {"#{Figures.grouped(stats.elites)} of #{cells}", " · best #{stats.best}"}
        {:error, _busy_or_elsewhere} -> {cells, ""}
      end
    end
  end
end
