defmodule Sconce.Run.Follow do
  @moduledoc false
  # Writes the events of a run to a device until the run is over, as a display turns them into text.

  alias Sconce.{Options, Run}

  @clear "\r\e[K"

  @enforce_keys [:tag, :op, :display, :write]
  defstruct @enforce_keys

  @typedoc """
  A run and its display: the `tag` of the run's messages, the operation `op` of errors, a `display` with a
  field `live` (whether its last text is a line that the next one replaces), and `write`, which returns the text of an
  event and the updated display.
  """
  @type t :: %__MODULE__{
          tag: atom,
          op: atom,
          display: display,
          write: (display, map -> {iodata, display})
        }

  @type display :: %{required(:live) => boolean, optional(atom) => term}

  @doc "Subscribes to a run, writes its events to `device` and returns the result of the run."
  @spec run(GenServer.server(), t, IO.device()) :: {:ok, map} | {:error, Sconce.Error.t()}
  def run(run, %__MODULE__{op: op} = follow, device) do
    Options.server?(run) || Options.argument!("run", run, "the pid or the name of a run")

    # Resolves a name, because events carry the pid of the run.
    case GenServer.whereis(run) do
      pid when is_pid(pid) -> subscribed(pid, follow, device)
      _none_here -> Run.await(run, :infinity, op)
    end
  end

  defp subscribed(run, follow, device) do
    monitor = Process.monitor(run)
    outcome = with :ok <- Run.subscribe(run, follow.op), do: listen(run, monitor, follow, device)
    Process.demonitor(monitor, [:flush])
    outcome
  end

  defp listen(run, monitor, %{tag: tag} = follow, device) do
    receive do
      {^tag, ^run, event} ->
        {text, display} = follow.write.(follow.display, event)
        device = put(device, text)

        case event do
          %{event: :done, result: result} -> result
          _more -> listen(run, monitor, %{follow | display: display}, device)
        end

      {:DOWN, ^monitor, :process, _pid, _reason} ->
        _device = put(device, clear(follow.display))
        Run.await(run, :infinity, follow.op)
    end
  end

  # Writes the text, and returns the device, or nil if it is closed: a closed terminal does not end a run.
  defp put(nil, _text), do: nil

  defp put(device, text) do
    IO.write(device, text)
    device
  rescue
    ErlangError -> nil
  end

  @doc "Returns the text that replaces the live line of a display by `text`."
  @spec live(iodata) :: iodata
  def live(text), do: [@clear, text]

  @doc "Returns the text that erases the live line of a display, if there is one."
  @spec clear(display) :: iodata
  def clear(%{live: true}), do: @clear
  def clear(_display), do: []
end
