defmodule Sconce.Test.Site do
  @moduledoc "Small web servers and proxies, each for one test."

  import ExUnit.Callbacks, only: [start_supervised!: 1]

  @doc """
  Starts a server on a local port. `answer` gets the first line of each request and returns the bytes of the whole
  answer, or `:silence`. `tls` are the options of an `:ssl` server, or nil. Returns the port; the test's process gets
  `{:asked, line}` for each request.
  """
  def serve!(answer, tls \\ nil) do
    test = self()
    transport = if tls, do: {:ssl, tls}, else: {:gen_tcp, []}
    {module, options} = transport

    options =
      [:binary, packet: :line, active: false, reuseaddr: true, ip: {127, 0, 0, 1}] ++ options

    {:ok, listener} = module.listen(0, options)
    {:ok, {_ip, port}} = if tls, do: :ssl.sockname(listener), else: :inet.sockname(listener)

    start_supervised!(%{
      id: {__MODULE__, port},
      start: {Task, :start_link, [fn -> accept(module, listener, answer, test) end]}
    })

    port
  end

  @doc "A whole answer with a body of these bytes; `length` is what the header announces."
  def ok(body, length \\ nil) do
    "HTTP/1.1 200 OK\r\nContent-Length: #{length || byte_size(body)}\r\nConnection: close\r\n\r\n" <>
      body
  end

  @doc "An answer without a body, with header lines."
  def status(status, headers \\ ""),
    do: "HTTP/1.1 #{status}\r\n#{headers}Content-Length: 0\r\nConnection: close\r\n\r\n"

  defp accept(module, listener, answer, test) do
    case accepted(module, listener) do
      {:ok, socket} -> module |> reply(socket, answer, test)
      {:error, _reason} -> :ok
    end

    accept(module, listener, answer, test)
  end

  defp accepted(:gen_tcp, listener), do: :gen_tcp.accept(listener)

  defp accepted(:ssl, listener) do
    with {:ok, socket} <- :ssl.transport_accept(listener), do: :ssl.handshake(socket, 5_000)
  end

  defp reply(module, socket, answer, test) do
    {:ok, line} = module.recv(socket, 0, 5_000)
    rest = headers(module, socket)
    send(test, {:asked, String.trim(line), rest})

    case answer.(line) do
      :silence ->
        # Kept open by the owner, this process.
        :ok

      bytes ->
        :ok = module.send(socket, bytes)
        module.close(socket)
    end
  end

  defp headers(module, socket) do
    case module.recv(socket, 0, 5_000) do
      {:ok, "\r\n"} -> []
      {:ok, line} -> [String.trim(line) | headers(module, socket)]
    end
  end
end
