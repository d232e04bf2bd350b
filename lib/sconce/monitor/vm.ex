defmodule Sconce.Monitor.Vm do
  @moduledoc false
  # The metrics of this VM: gives them a file, and samples what nothing counts, once a second. Deletes the file at the
  # VM's normal end.

  use Sconce.Server

  require Logger

  alias Sconce.Monitor.{
    Catalogue,
    Events,
    Files,
    Folder,
    Names,
    Region,
    Sample,
    Snapshot,
    Subjects
  }

  alias Sconce.Native

  @every_ms 1_000
  @region {__MODULE__, :region}
  # A table with the last sample.
  @machine __MODULE__

  def start_link(_opts), do: GenServer.start_link(__MODULE__, nil, name: __MODULE__)

  @doc "The region of this VM; made without a file if the application has not started."
  @spec region() :: {:ok, Region.t()} | {:error, Sconce.Error.t()}
  def region do
    case :persistent_term.get(@region, nil) do
      nil -> asked()
      region -> {:ok, region}
    end
  end

  # The process has just started, or the application has not.
  defp asked do
    case GenServer.whereis(__MODULE__) && GenServer.call(__MODULE__, :region) do
      %Region{} = region -> {:ok, region}
      nil -> Region.of_vm(nil, %{})
    end
  catch
    :exit, _gone -> Region.of_vm(nil, %{})
  end

  @doc """
  The last sample of the machine and its cards, as `Sconce.Monitor.Sample.take/1` returns it; empty before the first.
  """
  @spec machine() :: [Sample.value()]
  def machine do
    [{:machine, values}] = :ets.lookup(@machine, :machine)
    values
  rescue
    # The process has not started.
    _error in [ArgumentError, MatchError] -> []
  end

  @doc "A reading of this VM's metrics, from memory: it needs no file."
  @spec snapshot() :: {:ok, Snapshot.t()} | {:error, Sconce.Error.t()}
  def snapshot do
    with {:ok, %Region{path: path} = region} <- region(),
         {:ok, read} <- read(region),
         do: {:ok, Snapshot.decoded(read, path || "#{System.pid()}.vm")}
  end

  defp read(region) do
    with {:ok, bytes} <- Native.monitor_read(region.ref),
         do: {:ok, _read} = Snapshot.Layout.decode(bytes)
  end

  @doc "The file of this VM, nil if it has none."
  @spec file() :: Path.t() | nil
  def file do
    with {:ok, %Region{path: path}} <- region() do
      path
    else
      {:error, _no_library} -> nil
    end
  end

  @impl true
  def init(nil) do
    Process.flag(:trap_exit, true)
    :ets.new(@machine, [:named_table, :protected, read_concurrency: true])
    Names.new()
    {:ok, nil, {:continue, :share}}
  end

  @impl true
  def handle_continue(:share, nil) do
    case share() do
      {:ok, region} ->
        :persistent_term.put(@region, region)
        send(self(), :sample)
        state = %{region: region, sample: Sample.new(), sessions: %{}, shown: %{}}
        {:noreply, %{state | region: without_subjects(region)}}

      # No native library: nothing counts.
      {:error, _error} ->
        {:noreply, nil, :hibernate}
    end
  end

  # The region outlives this process. A restarted one does not know what the one before showed.
  defp without_subjects(region) do
    with {:ok, %{slots: slots}} <- read(region) do
      left = for slot <- slots, Catalogue.subject?(slot.name), do: slot
      region |> Region.known(left) |> Region.remove(Enum.map(left, & &1.name))
    else
      {:error, _error} -> region
    end
  rescue
    _error -> region
  end

  defp share do
    share_file()
  rescue
    _error -> Region.of_vm(nil, %{})
  catch
    :exit, _reason -> Region.of_vm(nil, %{})
  end

  defp share_file do
    meta = Map.merge(Files.place(), %{kind: "vm", name: name()})

    with {:ok, path} <- Files.new("#{System.pid()}-#{Folder.id()}.vm"),
         {:ok, region} <- Region.of_vm(path, meta) do
      # A Mix task and a script halt the VM, which does not end this process.
      System.at_exit(fn _status -> leave(region) end)
      {:ok, region}
    else
      {:error, _no_file} -> Region.of_vm(nil, meta)
    end
  end

  defp name do
    case {Node.alive?(), Files.place().command} do
      {true, _command} -> to_string(node())
      {false, nil} -> "pid #{System.pid()}"
      {false, command} -> String.slice(command, 0, 60)
    end
  end

  @impl true
  def handle_call(:region, _from, state), do: {:reply, state && state.region, state}

  @impl true
  def handle_info(:sample, %{} = state) do
    Process.send_after(self(), :sample, @every_ms)
    {:noreply, sampled(state)}
  end

  def handle_info(_other, state), do: {:noreply, state}

  # A failure, as while a supervisor restarts its children, leaves out the values of this second.
  defp sampled(state) do
    {values, sample} = Sample.take(state.sample)
    :ets.insert(@machine, {:machine, values})
    {sessions, sums} = Sample.sessions(state.sessions)
    # By serving, session, leader, store and bot.
    shown = Map.new(Sample.servings() ++ sessions ++ Subjects.values())
    region = Region.remove(state.region, names(state.shown) -- names(shown))
    region = Region.write(region, values ++ Enum.concat(Map.values(shown)))
    if state.region.full == nil and region.full, do: full(region.full)
    _ = Region.beat(region)
    told(%{state | region: region, sample: sample, sessions: sums, shown: shown})
  rescue
    _error -> alive(state)
  catch
    :exit, _reason -> alive(state)
  end

  # A failed event handler does not undo the sample.
  defp told(state) do
    with true <- Events.heard?(), {:ok, read} <- read(state.region), do: Events.tell(read.slots)
    state
  rescue
    _error -> state
  end

  defp alive(state) do
    _ = Region.beat(state.region)
    state
  end

  defp full(name),
    do: Logger.warning("#{name} and others are not shown: the table of this VM's metrics is full")

  defp names(shown), do: for({_owner, values} <- shown, value <- values, do: elem(value, 1))

  @impl true
  def terminate(reason, %{region: region}) when reason in [:normal, :shutdown], do: leave(region)
  def terminate(_crash, _state), do: :ok

  defp leave(%Region{path: nil}), do: :ok

  defp leave(%Region{path: path} = region) do
    _ = Region.beat(region, :done)
    _ = File.rm(path)
    :ok
  end
end
