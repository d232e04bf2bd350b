defmodule Sconce.Monitor.EndpointTest do
  use ExUnit.Case, async: true

  alias Sconce.Error
  alias Sconce.Monitor.Endpoint

  doctest Endpoint

  setup do
    endpoint = start_supervised!({Endpoint, port: 0})
    {:ok, port} = Endpoint.port(endpoint)
    [port: port]
  end

  # The answer to the bytes of a request.
  defp answer(port, request) do
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
    :ok = :gen_tcp.send(socket, request)
    answer = all(socket, "")
    :gen_tcp.close(socket)
    answer
  end

  defp all(socket, sofar) do
    case :gen_tcp.recv(socket, 0, 5_000) do
      {:ok, bytes} -> all(socket, sofar <> bytes)
      {:error, _closed} -> sofar
    end
  end

  defp get(port, path), do: answer(port, "GET #{path} HTTP/1.0\r\n\r\n")

  test "a scrape has the values", %{port: port} do
    answer = get(port, "/metrics")
    assert answer =~ ~r/\AHTTP\/1\.\d 200/
    assert answer =~ ~r/content-type: text\/plain; version=0\.0\.4/i
    [_head, body] = String.split(answer, "\r\n\r\n", parts: 2)
    assert body =~ ~r/^sconce_decisions_total \d+$/m
    assert String.ends_with?(body, "\n")
  end

  test "other paths and methods are refused", %{port: port} do
    assert get(port, "/") =~ "/metrics"
    assert get(port, "/etc/passwd") =~ ~r/\AHTTP\/1\.\d 404/
    assert get(port, "/../../etc/passwd") =~ ~r/\AHTTP\/1\.\d 40[04]/
    post = "POST /metrics HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi"
    refute answer(port, post) =~ ~r/\AHTTP\/1\.\d 200/
  end

  test "a port in use is an error that names it", %{port: port} do
    Process.flag(:trap_exit, true)
    assert {:error, %Error{kind: :unavailable} = error} = Endpoint.start_link(port: port)
    assert Exception.message(error) =~ "port #{port}"
    assert Exception.message(error) =~ "in use"
  end

  test "a scrape that hangs, and garbage, hinder no other", %{port: port} do
    hanging =
      for _n <- 1..4 do
        {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
        :ok = :gen_tcp.send(socket, "GET /metr")
        socket
      end

    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
    :ok = :gen_tcp.send(socket, :crypto.strong_rand_bytes(4096))
    assert get(port, "/metrics") =~ " 200"
    Enum.each([socket | hanging], &:gen_tcp.close/1)
    assert get(port, "/metrics") =~ " 200"
  end

  test "many at the same time are answered", %{port: port} do
    answers = 1..10 |> Enum.map(fn _n -> Task.async(fn -> get(port, "/metrics") end) end)
    assert answers |> Task.await_many(30_000) |> Enum.all?(&(&1 =~ " 200"))
  end

  test "a wrong option is refused" do
    assert_raise ArgumentError, ~r/:port/, fn -> Endpoint.start_link(port: 70_000) end
    assert_raise ArgumentError, ~r/:address/, fn -> Endpoint.start_link(address: "localhost") end
  end
end
