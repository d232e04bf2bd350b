defmodule Sconce.Monitor.Tracing do
  @moduledoc false
  # A trace of the whole VM, which the setting :trace asks for. It is written when the VM ends.

  use GenServer, restart: :temporary

  alias Sconce.{Config, Native}

  require Logger

  def start_link(_opts), do: GenServer.start_link(__MODULE__, Config.get(:trace))

  @impl true
  def init(nil), do: :ignore

  def init(path) do
    Process.flag(:trap_exit, true)

    case Native.monitor_trace() do
      {:ok, trace} ->
        path = Path.expand(path)
        # A Mix task and a script halt the VM, which does not end this process.
        System.at_exit(fn _status -> finish(trace, path) end)
        {:ok, {trace, path}}

      # No native library: there is nothing to trace.
      {:error, _error} ->
        :ignore
    end
  end

  @impl true
  def handle_info(_message, state), do: {:noreply, state}

  @impl true
  def terminate(_reason, {trace, path}), do: finish(trace, path)

  # The first of both ends of the VM writes the file.
  defp finish(trace, path) do
    with {:ok, _found} <- Native.monitor_trace_end(trace, true),
         {:error, error} <- Native.monitor_trace_write(trace, path),
         do: Logger.error("the trace of this VM was not written: #{Exception.message(error)}")

    :ok
  end
end
