defmodule Sconce.Monitor.Snapshot do
  @moduledoc """
  A reading of the file of figures that each run and each VM keeps while it runs.

  The file is read without touching the VM that writes it, and stays readable after the VM is killed. `open/1`
  reads one file, `list/1` the files of a folder. `mix sconce.monitor` draws them.

      {:ok, snapshots} = Sconce.Monitor.Snapshot.list()
      run = Enum.find(snapshots, & &1.kind == :run)
      Sconce.Monitor.Snapshot.value(run, "step.loss")
      #=> 1.2437

  | field | content |
  |---|---|
  | `path` | the file |
  | `kind` | `:run` or `:vm` |
  | `id` | id of the run, or OS process id of the VM, as text |
  | `meta` | map of what the writer says of itself: `"kind"`, `"out"`, `"host"`, `"command"` |
  | `os_pid` | OS process id of the writer |
  | `started_ms`, `heartbeat_ms` | Unix time of the start and of the last sign of life, in milliseconds |
  | `state` | `:running`, `:done`, `:failed` or `:stopped`, as the writer says; `life/2` also knows a dead one |
  | `slots` | the figures: `name`, `kind`, `unit`, `help`, `value` |

  The figures of a run are named after its events, as in `"step.loss"` (`Sconce.Events`), those of a VM as in
  Prometheus. A gauge whose value is NaN or infinite is unknown, which is nil.
  """

  alias Sconce.{Error, Options}
  alias Sconce.Monitor.Folder
  alias Sconce.Monitor.Snapshot.{Histogram, Layout, Life, Slot}

  # The most bytes of a file.
  @most 16 * 1024 * 1024
  # Readings of a file whose writer is busy, and milliseconds between two.
  @tries 4
  @pause_ms 2

  @enforce_keys [:path, :kind, :id, :os_pid, :ticks, :started_ms, :heartbeat_ms, :state]
  defstruct @enforce_keys ++ [:read_us, meta: %{}, slots: [], by_name: %{}]

  @type t :: %__MODULE__{}

  @doc """
  Returns the snapshots of a folder, the latest written first; by default that of the setting `:monitor_dir`
  (`Sconce.Config`). Files that cannot be read are left out; `open/1` returns their errors.

      iex> Sconce.Monitor.Snapshot.list("/nowhere")
      {:ok, []}
  """
  @spec list(Path.t() | nil) :: {:ok, [t]} | {:error, Error.t()}
  def list(dir \\ nil) do
    dir = if dir == nil, do: Folder.path(), else: Options.path!(dir)

    with {:ok, paths} <- Folder.files(dir) do
      {:ok, for(path <- paths, {:ok, snapshot} <- [open(path)], do: snapshot)}
    end
  end

  @doc """
  Reads a file of figures.

  The error is of kind `:not_found` without the file, of kind `:io` if the system refuses it, and of kind `:corrupt`
  with the reason if it is cut, of another version or not such a file.

      iex> {:error, error} = Sconce.Monitor.Snapshot.open("/nowhere/01234567.run")
      iex> error.kind
      :not_found
  """
  @spec open(Path.t()) :: {:ok, t} | {:error, Error.t()}
  def open(path) do
    path = Options.path!(path)

    with {:ok, %{type: type, size: size}} <- File.stat(path),
         :ok <- readable(type, size),
         {:ok, file} <- :file.open(path, [:read, :raw, :binary]) do
      answer = read(file, path, @tries)
      _ = :file.close(file)
      answer
    else
      {:error, reason} -> failed(path, reason)
    end
  end

  # Opening a pipe would wait for its writer.
  defp readable(:regular, size) when size <= @most, do: :ok
  defp readable(:regular, _size), do: {:error, "the file has more than #{@most} bytes"}
  defp readable(_type, _size), do: {:error, "is not a file"}

  defp read(file, path, tries) do
    with {:ok, bytes} <- bytes(file),
         {:ok, read} <- Layout.decode(bytes),
         {:ok, torn} <- torn(file, read.slots) do
      if torn == [] or tries == 1 do
        {:ok, decoded(read, path, torn)}
      else
        Process.sleep(@pause_ms)
        read(file, path, tries - 1)
      end
    else
      {:error, reason} -> failed(path, reason)
    end
  end

  defp bytes(file) do
    case :file.pread(file, 0, @most) do
      :eof -> {:ok, ""}
      other -> other
    end
  end

  # Returns the names of series and texts that their writer changed during the reading: the word that counts their
  # writings is odd, or differs by now.
  defp torn(file, slots) do
    {names, read} =
      Enum.unzip(for %{sequence: {at, word}, name: name} <- slots, do: {name, {at, word}})

    case :file.pread(file, for({at, _word} <- read, do: {8 * at, 8})) do
      {:ok, words} ->
        {:ok,
         for(
           {name, {_at, word}, now} <- Enum.zip([names, read, words]),
           rem(word, 2) == 1 or now != <<word::little-64>>,
           do: name
         )}

      {:error, reason} ->
        {:error, reason}
    end
  end

  @doc false
  # A snapshot of what `Layout.decode/1` returns; figures that their writer changed during the reading are unknown.
  @spec decoded(map, Path.t(), [String.t()]) :: t
  def decoded(read, path, torn \\ []) do
    slots =
      for slot <- read.slots, do: if(slot.name in torn, do: %{slot | value: nil}, else: slot)

    vm? = read.meta["kind"] == "vm"

    %__MODULE__{
      path: path,
      kind: if(vm?, do: :vm, else: :run),
      id: path |> Path.basename() |> String.split(["-", "."]) |> hd(),
      os_pid: read.os_pid,
      ticks: read.ticks,
      started_ms: read.started_ms,
      heartbeat_ms: read.heartbeat_ms,
      state: read.state,
      read_us: System.monotonic_time(:microsecond),
      meta: read.meta,
      slots: slots,
      by_name: Map.new(slots, &{&1.name, &1})
    }
  end

  defp failed(path, :enoent), do: error(:not_found, %{what: path})

  defp failed(path, reason) when is_atom(reason),
    do: error(:io, %{path: path, reason: to_string(:file.format_error(reason))})

  defp failed(path, reason), do: error(:corrupt, %{what: path, reason: reason})

  defp error(kind, details), do: {:error, %Error{kind: kind, op: :monitor, details: details}}

  @doc """
  Returns whether the writer lives: its state if it ended, and otherwise

    * `:running` - its process is there, and its heartbeat is not older than 10 seconds;
    * `:dead` - its process is gone, or another one has its id: it was killed;
    * `:silent` - its heartbeat is older, though its process is there or on another host.

  `now_ms` is the Unix time, now by default.

      iex> snapshot = %Sconce.Monitor.Snapshot{path: "a.run", kind: :run, id: "a", os_pid: 1, ticks: 0, started_ms: 0,
      ...>   heartbeat_ms: 5_000, state: :running, meta: %{"host" => "elsewhere"}}
      iex> for now <- [6_000, 60_000], do: Sconce.Monitor.Snapshot.life(snapshot, now)
      [:running, :silent]
      iex> Sconce.Monitor.Snapshot.life(%{snapshot | state: :done})
      :done
  """
  @spec life(t, integer | nil) :: Life.t()
  def life(snapshot, now_ms \\ nil)

  def life(%__MODULE__{} = snapshot, now_ms) when is_integer(now_ms) or is_nil(now_ms) do
    process = if snapshot.state == :running, do: Life.process(snapshot), else: :unknown
    Life.of(snapshot, process, now_ms || System.os_time(:millisecond))
  end

  def life(%__MODULE__{}, now_ms), do: Options.argument!("now_ms", now_ms, "an integer")

  @doc """
  Returns the value of a figure, or nil if it is unknown: the number of a counter or a gauge, the bytes of a text, the
  points `{x, y}` of a series, and the quantiles of a histogram, as `summary/2`.

      iex> slot = %Sconce.Monitor.Snapshot.Slot{name: "step.loss", kind: :gauge, value: 1.5}
      iex> snapshot = %Sconce.Monitor.Snapshot{path: "a.run", kind: :run, id: "a", os_pid: 1, ticks: 0, started_ms: 0,
      ...>   heartbeat_ms: 0, state: :done, slots: [slot], by_name: %{"step.loss" => slot}}
      iex> for name <- ["step.loss", "step.other"], do: Sconce.Monitor.Snapshot.value(snapshot, name)
      [1.5, nil]
  """
  @spec value(t, String.t()) :: term
  def value(%__MODULE__{by_name: by_name}, name) when is_binary(name) do
    case by_name[name] do
      %Slot{kind: :histogram, value: histogram} -> summed(histogram)
      %Slot{kind: :series, value: %{points: points}} -> points
      %Slot{value: value} -> value
      nil -> nil
    end
  end

  def value(%__MODULE__{}, name), do: Options.argument!("name", name, "a string")

  @doc """
  Returns the values that a histogram recorded after an earlier reading, or since its start: `count`, `mean`, `p50`,
  `p95`, `p99` and `p999`; nil without such a histogram or without values. Times are in nanoseconds.

      iex> histogram = %Sconce.Monitor.Snapshot.Histogram{sum: 30, counts: [{1, 10}, {20, 1}]}
      iex> slot = %Sconce.Monitor.Snapshot.Slot{name: "a", kind: :histogram, value: histogram}
      iex> snapshot = %Sconce.Monitor.Snapshot{path: "1.vm", kind: :vm, id: "1", os_pid: 1, ticks: 0, started_ms: 0,
      ...>   heartbeat_ms: 0, state: :done, slots: [slot], by_name: %{"a" => slot}}
      iex> Sconce.Monitor.Snapshot.summary(snapshot, "a").p95
      20.0
      iex> Sconce.Monitor.Snapshot.summary(snapshot, "a", snapshot)
      nil
  """
  @spec summary(t, String.t(), t | nil) :: map | nil
  def summary(now, name, before \\ nil)

  def summary(%__MODULE__{by_name: by_name} = now, name, before) when is_binary(name) do
    with %Slot{kind: :histogram, value: histogram} <- by_name[name],
         %Histogram{} = recorded <- since(histogram, now, earlier(before), name),
         do: summed(recorded),
         else: (_none -> nil)
  end

  def summary(%__MODULE__{}, name, _before), do: Options.argument!("name", name, "a string")

  defp earlier(nil), do: nil
  defp earlier(%__MODULE__{} = before), do: before
  defp earlier(other), do: Options.argument!("before", other, "a snapshot or nil")

  defp since(histogram, _now, nil, _name), do: histogram

  defp since(histogram, now, before, name) do
    with true <- same?(now, before),
         %Slot{kind: :histogram, value: earlier} <- before.by_name[name],
         do: Histogram.since(histogram, earlier),
         else: (_other -> nil)
  end

  defp summed(histogram) do
    case Histogram.count(histogram) do
      0 ->
        nil

      count ->
        at = &Histogram.quantile(histogram, &1)

        %{count: count, mean: Histogram.mean(histogram)}
        |> Map.merge(%{p50: at.(0.5), p95: at.(0.95), p99: at.(0.99), p999: at.(0.999)})
    end
  end

  @doc """
  Returns the rate of a counter, or of the values of a histogram, between two readings, in 1/s. It is nil if one of
  them lacks the figure, if they are of different writers, or if the later one is not later.

      iex> slot = %Sconce.Monitor.Snapshot.Slot{name: "a", kind: :counter, value: 10}
      iex> before = %Sconce.Monitor.Snapshot{path: "1.vm", kind: :vm, id: "1", os_pid: 1, ticks: 0, started_ms: 0,
      ...>   heartbeat_ms: 0, state: :running, read_us: 0, slots: [slot], by_name: %{"a" => slot}}
      iex> now = %{before | read_us: 2_000_000, by_name: %{"a" => %{slot | value: 30}}}
      iex> {Sconce.Monitor.Snapshot.rate(now, before, "a"), Sconce.Monitor.Snapshot.rate(before, now, "a")}
      {10.0, nil}
  """
  @spec rate(t, t, String.t()) :: float | nil
  def rate(%__MODULE__{} = now, %__MODULE__{} = before, name) when is_binary(name) do
    with true <- same?(now, before),
         true <- now.read_us > before.read_us,
         value when value != nil <- total(now.by_name[name]),
         earlier when earlier != nil and earlier <= value <- total(before.by_name[name]) do
      (value - earlier) / ((now.read_us - before.read_us) / 1_000_000)
    else
      _unknown -> nil
    end
  end

  def rate(%__MODULE__{}, %__MODULE__{}, name), do: Options.argument!("name", name, "a string")

  defp total(%Slot{kind: :counter, value: value}), do: value
  defp total(%Slot{kind: :histogram, value: histogram}), do: Histogram.count(histogram)
  defp total(_other), do: nil

  # Whether two readings are of one writer.
  defp same?(a, b),
    do: {a.path, a.os_pid, a.ticks, a.started_ms} == {b.path, b.os_pid, b.ticks, b.started_ms}

  defimpl Inspect do
    def inspect(%{slots: slots, meta: meta} = snapshot, _opts)
        when is_list(slots) and is_map(meta) do
      out = if is_binary(meta["out"]), do: " " <> Sconce.Text.printable(meta["out"], 60), else: ""
      figures = Sconce.Figures.counted(length(slots), "figure")

      "#Sconce.Monitor.Snapshot<#{snapshot.kind} #{snapshot.id} #{snapshot.state}#{out}, #{figures}>"
    rescue
      _built_by_hand -> "#Sconce.Monitor.Snapshot<invalid>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Monitor.Snapshot<invalid>"
  end
end
