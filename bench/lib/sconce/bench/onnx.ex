defmodule Sconce.Bench.Onnx do
  @moduledoc false
  # ONNX Runtime in a process of its own, for `mix bench zoo`: `bench/peers/zoo.py`. It answers each command with a line.

  alias Sconce.Bench.Peers

  @script Path.expand("../../../peers/zoo.py", __DIR__)
  @patience_ms 120_000

  @doc "Starts the script on the networks of a folder. Raises if the environment of the peers is missing."
  @spec open(Path.t()) :: port
  def open(folder) do
    python = python()
    File.exists?(python) || raise "no #{python}: PEERS_DIR must hold venv, with onnxruntime"
    args = ["-B", @script, folder, "--threads", "1"]

    Port.open({:spawn_executable, python}, [
      :binary,
      :use_stdio,
      :exit_status,
      line: 65_536,
      args: args
    ])
  end

  @doc "The Python of the peers, as in `bench/peers/run.py`."
  @spec python() :: Path.t()
  def python do
    home =
      System.get_env("PEERS_DIR") || Path.join([System.user_home!(), ".cache", "sconce-peers"])

    Path.join([home, "venv", "bin", "python"])
  end

  @doc "Builds a network there, and compares its output. Raises if it differs."
  @spec check(port, atom) :: map
  def check(port, name), do: ask(port, "check #{name}")

  @doc "Quantises a network there to 8 bits, and compares its output with that in f32."
  @spec quantise(port, atom) :: {:ok, map} | {:error, String.t()}
  def quantise(port, name) do
    {:ok, ask(port, "check8 #{name}")}
  rescue
    error in RuntimeError -> {:error, Exception.message(error)}
  end

  @doc "Medians of runs for some seconds, with `median_us`, `p99_us` and `n`."
  @spec time(port, atom, float, :f32 | :int8) :: map
  def time(port, name, seconds, storage \\ :f32)
  def time(port, name, seconds, :f32), do: ask(port, "time #{name} #{seconds}")
  def time(port, name, seconds, :int8), do: ask(port, "time8 #{name} #{seconds}")

  @doc "Ends the script."
  @spec close(port) :: true
  def close(port), do: Port.close(port)

  defp ask(port, command) do
    Port.command(port, command <> "\n")

    case answer(port) do
      %{"ok" => true} = answer -> answer
      %{"reason" => reason} -> raise "ONNX Runtime: #{reason}"
      %{"difference" => apart} -> raise "ONNX Runtime: its output is #{apart} apart"
    end
  end

  defp answer(port) do
    receive do
      {^port, {:data, {:eol, "{" <> _ = line}}} -> Peers.parse(line)
      {^port, {:data, _printed}} -> answer(port)
      {^port, {:exit_status, status}} -> raise "#{@script} ended with status #{status}"
    after
      @patience_ms -> raise "#{@script} did not answer"
    end
  end
end
