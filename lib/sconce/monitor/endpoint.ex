defmodule Sconce.Monitor.Endpoint do
  alias Sconce.{Error, Monitor, Options}

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
    name: [type: {:or, [nil, :atom]}, default: nil, doc: "Name of the process."]
  ]

  @moduledoc """
  A small HTTP server, OTP's own, from which Prometheus scrapes the values of `Sconce.Monitor` at `/metrics`.

  It is off unless an app starts it, and serves this machine alone unless another `:address` is given. It knows no
  users and no passwords: let a proxy in front of it check them.

      children = [{Sconce.Monitor.Endpoint, port: 9568}]

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

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)

    with :ok <- inets(), {:ok, httpd} <- httpd(opts) do
      {:ok, %{httpd: httpd, port: port_of(httpd, opts[:port])}}
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
      modules: [__MODULE__],
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

  @impl true
  def handle_info({:EXIT, httpd, reason}, %{httpd: httpd} = state), do: {:stop, reason, state}

  @impl true
  def terminate(_reason, %{httpd: httpd}), do: apply(:inets, :stop, [:stand_alone, httpd])

  @doc false
  # Answers a request; called by `:httpd` with its record `mod`.
  def unquote(:do)(request) when elem(request, 0) == :mod do
    {code, type, body} = answer(elem(request, 6), elem(request, 8))

    head = [
      code: code,
      content_type: type,
      content_length: body |> byte_size() |> Integer.to_charlist(),
      cache_control: ~c"no-store"
    ]

    {:proceed, [response: {:response, head, [body]}]}
  end

  @text ~c"text/plain; charset=utf-8"

  defp answer(~c"GET", path) when path in [~c"/metrics", ~c"/metrics/"] do
    case Monitor.prometheus() do
      {:ok, text} -> {200, ~c"text/plain; version=0.0.4; charset=utf-8", text}
      {:error, error} -> {503, @text, Exception.message(error) <> "\n"}
    end
  end

  defp answer(~c"GET", ~c"/"), do: {200, @text, "The values of Sconce are at /metrics.\n"}
  defp answer(~c"GET", _other), do: {404, @text, "Not found: there are / and /metrics.\n"}
  defp answer(_method, _path), do: {501, @text, "Only GET is answered.\n"}
end
