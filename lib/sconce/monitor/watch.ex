defmodule Sconce.Monitor.Watch do
  @moduledoc false
  # The readings of a view: the present and the previous snapshot of each file, and the course of its gauges and
  # rates. A file that vanishes or breaks stays with its last snapshot and the reason.

  alias Sconce.Monitor.{Folder, Snapshot}
  alias Sconce.Monitor.Snapshot.{Histogram, Life}

  # Values of each figure that are kept, and figures of a file whose course is kept.
  @course 240
  @figures 400

  @enforce_keys [:dir]
  defstruct [:dir, :only, files: %{}, order: [], error: nil]

  @typedoc "A file: its latest snapshots, its life, and the values of its figures, the newest first."
  @type file :: %{
          now: Snapshot.t(),
          before: Snapshot.t() | nil,
          life: Life.t(),
          lost: String.t() | nil,
          course: %{String.t() => [number | nil]}
        }
  @type t :: %__MODULE__{}

  @doc "A watch of a folder, or of one of its files alone."
  @spec new(Path.t(), Path.t() | nil) :: t
  def new(dir, only \\ nil), do: %__MODULE__{dir: dir, only: only}

  @doc "Reads the files again."
  @spec read(t) :: t
  def read(%__MODULE__{} = watch) do
    {paths, error} = paths(watch)
    known = for path <- watch.order, path not in paths, do: path
    order = if watch.only, do: paths, else: paths ++ known
    files = Map.new(order, &{&1, seen(watch.files[&1], &1)})
    readable = for path <- order, files[path] != nil, do: path

    %{
      watch
      | files: Map.take(files, readable),
        order: readable,
        error: error || unread(watch, readable)
    }
  end

  defp paths(%{only: nil, dir: dir}) do
    case Folder.files(dir) do
      {:ok, paths} -> {paths, nil}
      {:error, error} -> {[], Exception.message(error)}
    end
  end

  # With a run its VM is watched, too: its machine and servings.
  defp paths(%{only: path, dir: dir, files: files}) do
    vm = with %{now: %{kind: :run, meta: %{"vm" => name}}} <- files[path], do: vm(dir, name)
    {Enum.filter([path, vm], &is_binary/1), nil}
  end

  # Any name may stand in a file.
  defp vm(dir, name) when is_binary(name), do: Path.join(dir, Path.basename(name))
  defp vm(_dir, _other), do: nil

  defp unread(%{only: path}, readable) when is_binary(path) do
    with false <- path in readable,
         {:error, error} <- Snapshot.open(path),
         do: Exception.message(error),
         else: (_read -> nil)
  end

  defp unread(_watch, _readable), do: nil

  # The file of what has ended does not change any more.
  defp seen(%{life: life, lost: nil} = file, path)
       when life in [:done, :failed, :stopped, :dead] do
    if stamp(path) == file.stamp,
      do: %{file | before: nil},
      else: seen(%{file | life: :running}, path)
  end

  defp seen(file, path) do
    stamp = stamp(path)
    with %{} = file <- read(file, path), do: Map.put(file, :stamp, stamp)
  end

  defp stamp(path) do
    with {:ok, %{mtime: mtime, size: size, inode: inode}} <- File.stat(path),
         do: {mtime, size, inode}
  end

  defp read(file, path) do
    case {Snapshot.open(path), file} do
      {{:ok, now}, nil} ->
        kept(%{now: now, before: nil, life: Snapshot.life(now), lost: nil, course: %{}})

      # The file of another writer with the same name.
      {{:ok, %{started_ms: start} = now}, %{now: %{started_ms: other}}} when start != other ->
        kept(%{now: now, before: nil, life: Snapshot.life(now), lost: nil, course: %{}})

      {{:ok, now}, file} ->
        kept(%{file | now: now, before: file.now, life: Snapshot.life(now), lost: nil})

      {{:error, _error}, nil} ->
        nil

      {{:error, error}, file} ->
        life = if file.life == :running, do: Snapshot.life(file.now), else: file.life
        %{file | life: life, lost: Exception.message(error)}
    end
  end

  defp kept(%{now: now, course: course} = file) do
    values =
      for slot <- Enum.take(now.slots, @figures), slot.kind in [:gauge, :counter, :histogram] do
        value =
          case slot do
            %{kind: :gauge, value: value} -> value
            %{name: name} -> rate(file, name)
          end

        {slot.name, Enum.take([value | Map.get(course, slot.name, [])], @course)}
      end

    %{file | course: Map.new(values)}
  end

  @doc "Growth of a counter, or of the number of values of a histogram, a second; nil before the second reading."
  @spec rate(file, String.t()) :: float | nil
  def rate(%{before: nil}, _name), do: nil

  def rate(%{now: now, before: before}, name), do: Snapshot.rate(now, before, name)

  @doc "The values of a histogram between the two readings, or all of them."
  @spec latest(file, String.t()) :: Histogram.t() | nil
  def latest(%{now: now, before: before}, name) do
    case {histogram(now, name), histogram(before, name)} do
      {%Histogram{} = new, %Histogram{} = old} ->
        case Histogram.since(new, old) do
          %Histogram{counts: [_ | _]} = since -> since
          _none -> new
        end

      {new, _none} ->
        new
    end
  end

  defp histogram(nil, _name), do: nil

  defp histogram(%{by_name: by_name}, name) do
    with %{value: %Histogram{} = histogram} <- by_name[name], do: histogram, else: (_none -> nil)
  end
end
