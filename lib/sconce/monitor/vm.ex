defmodule Sconce.Monitor.Vm do
  @moduledoc false
  # The metrics of this VM: gives them a file, and samples what nothing counts, once a second. Deletes the file at the
  # VM's normal end.

  use Sconce.Server

  alias Sconce.Monitor.{Catalogue, Files, Region, Sample}

  @every_ms 1_000
  @region {__MODULE__, :region}

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
    {:ok, nil, {:continue, :share}}
  end

  @impl true
  def handle_continue(:share, nil) do
    case share() do
      {:ok, region} ->
        :persistent_term.put(@region, region)
        send(self(), :sample)
        {:noreply, %{region: region, sample: Sample.new(), servings: %{}}}

      # No native library: nothing counts.
      {:error, _error} ->
        {:noreply, nil, :hibernate}
    end
  end

  defp share do
    meta = Map.merge(Files.place(), %{kind: "vm", name: name()})

    with {:ok, path} <- Files.new("#{System.pid()}.vm"),
         {:ok, region} <- Region.of_vm(path, meta) do
      # A Mix task and a script halt the VM, which does not end this process.
      System.at_exit(fn _status -> leave(region) end)
      {:ok, region}
    else
      {:error, _no_file} -> Region.of_vm(nil, meta)
    end
  end

  defp name do
    case {Node.alive?(), System.argv()} do
      {true, _argv} -> to_string(node())
      {false, [task | _rest]} -> "mix #{String.slice(task, 0, 60)}"
      {false, []} -> "pid #{System.pid()}"
    end
  end

  @impl true
  def handle_call(:region, _from, state), do: {:reply, state && state.region, state}

  @impl true
  def handle_info(:sample, %{} = state) do
    Process.send_after(self(), :sample, @every_ms)
    {values, sample} = Sample.take(state.sample)
    {served, servings} = servings(state.servings)
    gone = Map.keys(state.servings) -- Map.keys(servings)
    region = Region.remove(state.region, Enum.flat_map(gone, &state.servings[&1]))
    region = Region.write(region, values ++ served)
    Region.beat(region)
    {:noreply, %{state | region: region, sample: sample, servings: servings}}
  end

  def handle_info(_other, state), do: {:noreply, state}

  @impl true
  def terminate(_reason, %{region: region}), do: leave(region)
  def terminate(_reason, nil), do: :ok

  defp leave(%Region{path: nil}), do: :ok

  defp leave(%Region{path: path} = region) do
    Region.beat(region, :done)
    _ = File.rm(path)
    :ok
  end

  # Values of each serving, and the names of its metrics by serving.
  defp servings(_before) do
    found = Sample.servings()
    names = for {label, values} <- found, into: %{}, do: {label, Enum.map(values, &elem(&1, 1))}
    {Enum.flat_map(found, &elem(&1, 1)), names}
  end

  @doc "Names and meanings of all metrics that this VM writes."
  defdelegate catalogue, to: Catalogue, as: :all
end
