defmodule Sconce.Monitor.Endpoint do
  alias Sconce.{Error, Options}
  alias Sconce.Monitor.Endpoint.{Http, Reading}
  alias Sconce.Monitor.Folder

  @options [
    port: [
      type: {:in, 0..65_535},
      default: 9568,
      doc: "Port; 0 is a free one, see `port/1`."
    ],
    address: [
      type: {:tuple, [{:in, 0..255}, {:in, 0..255}, {:in, 0..255}, {:in, 0..255}]},
      default: {127, 0, 0, 1},
      doc: "Address of the interface; `{0, 0, 0, 0}` is reachable from other machines."
    ],
    dir: [
      type: {:or, [:path, nil]},
      default: nil,
      doc:
        "Folder of the runs on the live page, by default that of the setting `:monitor_dir`, see `Sconce.Monitor`."
    ],
    name: [type: {:or, [nil, :atom]}, default: nil, doc: "Name of the process."]
  ]

  @moduledoc """
  A small HTTP server, OTP's own, with a live page for a browser and the values of `Sconce.Monitor` for Prometheus.

      children = [{Sconce.Monitor.Endpoint, port: 9568}]

  It is off unless an app starts it. It answers GET and HEAD at these paths:

  | path | answer |
  |---|---|
  | `/`, `/index.html` | the live page, one file that loads nothing else |
  | `/monitor.json` | what the page shows: the metrics of this VM, and the runs that `mix sconce.monitor` lists |
  | `/metrics` | the metrics in the text format of Prometheus |

  The page asks for `/monitor.json` once a second while its tab is visible. The files of the runs are then read about once a
  second, however many pages are open, and not at all without a page.

  ## JSON

  An object with `time` (Unix time in ms), `vm`, `metrics`, `runs` (the latest 24), `vms` (others of this folder), `hidden` (runs
  and VMs that are left out), `folder` and `error`. A metric has `name`, `base`, `labels`, `app` (whether it belongs to the app),
  `kind`, `unit`, `doc` and `value`; a histogram's value has `count`, `mean`, `p50`, `p95`, `p99` and `p999`. Times are in seconds.
  Counters and histograms have their `rate` a second, and histograms the `latest` values, both since the previous reading. A run
  has `id`, `kind`, `state`, `out`, `command`, `step`, `steps`, `share`, `left` (seconds), `loss`, `curves`, `figures`, `note` and
  `error`. An unknown value is null.

  ## Security

  It serves this machine alone unless another `:address` is given. It knows no users and no passwords: let a proxy in front of
  it check them. While it serves this machine alone, it refuses requests whose `Host` is not `localhost`, `127.0.0.1`, `[::1]` or the
  `:address`, so that a page of another site cannot read from it by a name that it points here (DNS rebinding). A proxy sends one
  of these names. At another `:address` each `Host` is accepted.

  At most 16 connections are open; further ones wait. In a release the app lists `:inets` in its `:extra_applications`.
  """

  use Sconce.Server

  # An app without :inets can compile this module, so calls of it are by `apply/3`.

  # Connections, and seconds of an idle one.
  @most_clients 16
  @idle_seconds 10

  @doc """
  Starts the server. A port in use is an error of kind `:unavailable`.

  #{Options.docs(@options)}

      iex> {:ok, endpoint} = Sconce.Monitor.Endpoint.start_link(port: 0)
      iex> {:ok, port} = Sconce.Monitor.Endpoint.port(endpoint)
      iex> port > 0
      true
      iex> GenServer.stop(endpoint)
      :ok
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts \\ []) do
    opts = Options.validate!(opts, @options)
    GenServer.start_link(__MODULE__, opts, if(opts[:name], do: [name: opts[:name]], else: []))
  end

  @doc """
  Returns the port of a server.

      iex> {:ok, endpoint} = Sconce.Monitor.Endpoint.start_link(port: 0)
      iex> {:ok, port} = Sconce.Monitor.Endpoint.port(endpoint)
      iex> port in 1..65_535
      true
      iex> GenServer.stop(endpoint)
      :ok
  """
  @spec port(GenServer.server()) :: {:ok, :inet.port_number()} | {:error, Error.t()}
  def port(endpoint) do
    Options.server?(endpoint) || Options.argument!("endpoint", endpoint, "a pid or a name")
    GenServer.call(endpoint, :port)
  catch
    :exit, _gone -> {:error, %Error{kind: :cancelled, op: :monitor}}
  end

  @doc false
  # The text of `/monitor.json`.
  @spec json(pid) :: {:ok, binary} | {:error, Error.t()}
  def json(endpoint) do
    GenServer.call(endpoint, :json)
  catch
    :exit, _busy_or_gone -> {:error, %Error{kind: :cancelled, op: :monitor}}
  end

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)

    with :ok <- inets(), {:ok, httpd} <- httpd(opts) do
      reading = Reading.new(opts[:dir] || Folder.path())
      {:ok, %{httpd: httpd, port: port_of(httpd, opts[:port]), reading: reading}}
    else
      {:error, error} -> {:stop, error}
    end
  end

  defp inets do
    case Application.ensure_all_started(:inets) do
      {:ok, _started} -> :ok
      {:error, _reason} -> refused("the application :inets", "add it to :extra_applications")
    end
  end

  defp httpd(opts) do
    root = String.to_charlist(System.tmp_dir!())

    config = [
      port: opts[:port],
      bind_address: opts[:address],
      server_name: ~c"sconce",
      server_root: root,
      document_root: root,
      modules: [Http],
      # For `Http`, which finds it among the settings of a request.
      sconce_endpoint: self(),
      max_clients: @most_clients,
      keep_alive_timeout: @idle_seconds,
      max_body_size: 1024
    ]

    case apply(:inets, :start, [:httpd, config, :stand_alone]) do
      {:ok, httpd} -> {:ok, httpd}
      {:error, reason} -> refused("port #{opts[:port]}", reason(reason))
    end
  end

  # A server that ends with this process is not registered, so `:httpd.info/1` does not know its free port.
  defp port_of(httpd, 0) do
    [{{_instance, _address, port, _profile}, _pid, _type, _modules}] =
      Supervisor.which_children(httpd)

    port
  end

  defp port_of(_httpd, port), do: port

  defp reason(reason) do
    text = inspect(reason, limit: 20)
    if text =~ ~r/eaddrinuse|already_started/, do: "it is in use", else: text
  end

  defp refused(what, reason) do
    details = %{what: what, reason: reason}
    {:error, %Error{kind: :unavailable, op: :monitor, details: details}}
  end

  @impl true
  def handle_call(:port, _from, state), do: {:reply, {:ok, state.port}, state}

  def handle_call(:json, _from, state) do
    case Reading.json(state.reading, System.monotonic_time(:millisecond)) do
      {:ok, text, reading} -> {:reply, {:ok, text}, %{state | reading: reading}}
      {:error, error} -> {:reply, {:error, error}, state}
    end
  end

  @impl true
  def handle_info({:EXIT, httpd, reason}, %{httpd: httpd} = state), do: {:stop, reason, state}

  @impl true
  def terminate(_reason, %{httpd: httpd}), do: apply(:inets, :stop, [:stand_alone, httpd])
end
