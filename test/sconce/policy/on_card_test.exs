defmodule Sconce.Policy.OnCardTest do
  # Tensors of EXLA on a card. EXLA itself is not there: `Sconce.Test.SomeEXLA` stands in for it.
  use ExUnit.Case, async: false

  import Sconce.Test.SomeEXLA

  alias Sconce.{Error, Native, Policy, Serving}

  @heads [go: {:bernoulli, 2}, way: {:categorical, 4}]

  defp policy!(opts \\ []) do
    spec = [embedding: {:vector, 3}, hidden_size: 12, heads: @heads]
    {device, opts} = Keyword.pop(opts, :device, :cuda)
    {:ok, policy} = Policy.init(Keyword.merge(spec, opts), seed: 5, device: device)
    policy
  end

  # Numbers of 32 bits in 0..1, as many as the shape has.
  defp numbers(shape) do
    n = Tuple.product(shape)
    for i <- 1..n, into: <<>>, do: <<rem(i * 37, 101) / 101::float-32-little>>
  end

  defp no_block_is_left do
    # A card's first pass may load kernels of candle, which the driver compiles. It took an H100 four seconds.
    for _try <- 1..1000, blocks() > 0, do: Process.sleep(20)
    assert blocks() == 0
  end

  # Runs `fun` in a process, so that no tensor of it is alive afterwards.
  defp apart(fun), do: Task.await(Task.async(fun), 60_000)

  describe "on a card" do
    @describetag :gpu
    @describetag timeout: 120_000

    test "logits stay in memory of EXLA and are those of the path through the CPU, bit for bit" do
      policy = policy!()

      for as <- [:auto, :card], wrap <- [& &1, &{:ok, &1}] do
        with_exla(
          fn ->
            apart(fn ->
              data = numbers({2, 5, 3})
              {:ok, plain} = Policy.forward(policy, data, batch: 2, taps: [:trunk])

              frames = tensor(data, {2, 5, 3})
              {:ok, out} = Policy.forward(policy, frames, as: as, taps: [:trunk])
              assert out.logits.data.__struct__ == EXLA.Backend
              assert {out.logits.shape, out.shape} == {{2, 5, 6}, {2, 5, 6}}
              assert to_binary(out.logits) == plain.logits
              assert to_binary(out.state) == plain.state
              assert to_binary(out.taps.trunk) == plain.taps.trunk.data

              {:ok, last} = Policy.forward(policy, frames, as: as, return_sequences: false)
              assert last.logits.shape == {2, 6}
              {:ok, want} = Policy.forward(policy, data, batch: 2, return_sequences: false)
              assert to_binary(last.logits) == want.logits

              {:ok, through} = Policy.forward(policy, frames, as: :nx)
              assert through.logits.data == plain.logits
              {:ok, through} = Policy.forward(policy, frames, as: :binaries)
              assert through.logits == plain.logits
            end)

            no_block_is_left()
          end,
          wrap
        )
      end
    end

    test "windows, single frames and steps have the shapes of other tensors, and keep names" do
      policy = policy!()

      with_exla(fn ->
        data = numbers({4, 3})
        window = %{tensor(data, {4, 3}) | names: [:frames, :numbers]}
        {:ok, out} = Policy.forward(policy, window)
        assert {out.logits.shape, out.logits.names} == {{4, 6}, [:frames, nil]}
        {:ok, plain} = Policy.forward(policy, data)
        assert to_binary(out.logits) == plain.logits

        row = numbers({3})
        {:ok, out} = Policy.forward(policy, tensor(row, {3}), as: :card)
        assert out.logits.shape == {6}

        {:ok, step} =
          Policy.step(policy, tensor(data, {4, 3}),
            state: plain.state <> plain.state <> plain.state <> plain.state
          )

        {:ok, want} =
          Policy.step(policy, data,
            state: plain.state <> plain.state <> plain.state <> plain.state
          )

        assert step.logits.shape == {4, 6}
        assert to_binary(step.logits) == want.logits
      end)
    end

    test "the CPU embeds frames that are not the vector itself, and checks all of them" do
      normalised = {:normalised, mean: [0.5, 0.0, 0.25], deviation: [1.0, 2.0, 0.5]}
      policy = policy!(embedding: normalised)

      with_exla(fn ->
        data = numbers({2, 5, 3})
        {:ok, plain} = Policy.forward(policy, data, batch: 2)
        {:ok, out} = Policy.forward(policy, tensor(data, {2, 5, 3}), as: :card)
        assert to_binary(out.logits) == plain.logits

        for policy <- [policy, policy!()] do
          wrong = binary_part(data, 0, 16) <> <<0, 0, 192, 127>> <> binary_part(data, 20, 100)
          {:error, want} = Policy.forward(policy, wrong, batch: 2)
          assert want.kind == :non_finite
          assert Policy.forward(policy, tensor(wrong, {2, 5, 3}), as: :card) == {:error, want}
        end

        {:error, error} = Policy.forward(policy, tensor(data, {2, 3, 5}), as: :card)
        assert Exception.message(error) =~ "expected rows of 3 numbers, got rows of 5 numbers"
      end)
    end

    test "heads that read labels get them" do
      policy = policy!(heads_kind: :autoregressive)

      with_exla(fn ->
        {data, labels} = {numbers({1, 2, 3}), [[[1, 0, 2], [0, 1, 3]]]}

        for sequences <- [true, false] do
          opts = [labels: labels, return_sequences: sequences]
          {:ok, plain} = Policy.forward(policy, data, opts)
          {:ok, out} = Policy.forward(policy, tensor(data, {1, 2, 3}), opts)
          assert to_binary(out.logits) == plain.logits
        end
      end)
    end

    test "the memory of both tensors lives until the work ends, even if its caller was killed" do
      policy = policy!()

      with_exla(fn ->
        data = numbers({2, 5, 3})
        {:ok, gate} = Native.probe_stall()

        {caller, monitor} =
          spawn_monitor(fn -> Policy.forward(policy, tensor(data, {2, 5, 3})) end)

        until(fn -> waits?(caller) end)
        assert blocks() == 2
        Process.exit(caller, :kill)
        assert_receive {:DOWN, ^monitor, _, _, :killed}
        Process.sleep(50)
        assert blocks() == 2
        :ok = Native.probe_open(gate)
        no_block_is_left()
        # The card works on.
        {:ok, out} = Policy.forward(policy, tensor(data, {2, 5, 3}))
        {:ok, plain} = Policy.forward(policy, data, batch: 2)
        assert to_binary(out.logits) == plain.logits
      end)
    end

    test "a garbage collection of the caller frees nothing that the work needs" do
      policy = policy!()

      with_exla(fn ->
        data = numbers({2, 5, 3})
        {:ok, gate} = Native.probe_stall()

        task =
          Task.async(fn ->
            {:ok, out} = Policy.forward(policy, tensor(data, {2, 5, 3}))
            to_binary(out.logits)
          end)

        until(fn -> waits?(task.pid) end)
        :erlang.garbage_collect(task.pid)
        assert blocks() == 2
        :ok = Native.probe_open(gate)
        {:ok, plain} = Policy.forward(policy, data, batch: 2)
        assert Task.await(task) == plain.logits
        no_block_is_left()
      end)
    end

    test "logits outlive the policy" do
      with_exla(fn ->
        data = numbers({1, 2, 3})

        {out, want} =
          apart(fn ->
            policy = policy!()
            {:ok, out} = Policy.forward(policy, tensor(data, {1, 2, 3}))
            {:ok, plain} = Policy.forward(policy, data)
            {out, plain.logits}
          end)

        {:ok, _bytes} = Sconce.GPU.release(:cuda)
        # Other work takes the memory of the policy.
        {:ok, _out} = Policy.forward(policy!(hidden_size: 16), numbers({1, 8, 3}))
        assert to_binary(out.logits) == want
      end)
    end

    test "other pointers are refused, each by name, and nothing stays" do
      policy = policy!()

      for {wrap, message} <- [
            {&%{&1 | address: 0}, "frames: expected an address on a card, got a null pointer"},
            {&%{&1 | data_size: 116}, "frames: expected 120 bytes, got 116 bytes"},
            {&%{&1 | address: &1.address + 1}, "frames: expected an address of floats, got 0x"},
            {&%{&1 | address: &1.address + 4}, "on cuda:0, got 116 bytes there"},
            {&%{&1 | address: 4096}, "got 0x1000, which is no memory of a card"},
            {&%{&1 | kind: :ipc},
             "the pointer of frames: expected a pointer of kind :local, got one of kind :ipc"},
            {&%{&1 | address: nil}, "the pointer of frames: expected an Nx.Pointer"},
            {&%{&1 | address: -1}, "the pointer of frames: expected an Nx.Pointer"},
            {&%{&1 | address: 2 ** 64}, "the pointer of frames: expected an Nx.Pointer"},
            {fn _ -> {:error, :gone} end,
             "the pointer of frames: expected an address, got :gone"},
            {fn _ -> raise "Array has been deleted" end,
             "frames of EXLA.Backend: Array has been deleted"}
          ] do
        with_exla(
          fn ->
            apart(fn ->
              frames = tensor(numbers({2, 5, 3}), {2, 5, 3})
              assert {:error, %Error{op: :forward} = error} = Policy.forward(policy, frames)
              assert Exception.message(error) =~ message
            end)

            no_block_is_left()
          end,
          wrap
        )
      end
    end

    test "as: :card refuses everything else by name" do
      policy = policy!()
      here = policy!(device: :cpu)
      {:ok, serving} = Serving.start_link(policy: policy)

      with_exla(fn ->
        data = numbers({1, 2, 3})
        frames = tensor(data, {1, 2, 3})
        of = fn backend -> %{frames | data: backend} end
        expected = "frames: expected a tensor of EXLA.Backend on cuda:0, got "
        buffer = frames.data.buffer

        for {frames, got} <- [
              {of.(%{__struct__: Nx.BinaryBackend, state: data}), "one of Nx.BinaryBackend"},
              {of.(%{__struct__: Torchx.Backend, ref: nil}), "one of Torchx.Backend"},
              {of.(%{frames.data | buffer: %{buffer | client_name: :host}}),
               "one of EXLA.Backend on :host:0"},
              {of.(%{frames.data | buffer: %{buffer | device_id: 1}}),
               "one of EXLA.Backend on :cuda:1"},
              {of.(%{frames.data | buffer: %{__struct__: EXLA.BinaryBuffer}}),
               "one of EXLA.Backend in EXLA.BinaryBuffer"},
              {data, "a binary"},
              {[[[0.5, 0.5, 0.5]]], "a list"},
              {nil, "nil"}
            ] do
          {:error, error} = Policy.forward(policy, frames, as: :card)
          assert Exception.message(error) == "forward: " <> expected <> got
        end

        {:error, error} = Policy.forward(here, frames, as: :card)

        assert Exception.message(error) =~
                 "expected a policy on a card, for as: :card, got a policy on cpu"

        {:error, error} = Serving.forward(serving, frames, nil, as: :card)
        assert Exception.message(error) =~ "got a serving"

        # Without the demand they cross through the CPU.
        {:ok, plain} = Policy.forward(policy, data)
        {:ok, out} = Policy.forward(policy, of.(data))
        assert out.logits.data == plain.logits
        {:ok, out} = Serving.forward(serving, frames)
        assert is_binary(out.logits.data)
      end)
    end
  end

  test "without Nx, as: :card says so" do
    refute Code.ensure_loaded?(Nx)
    policy = policy!(device: :cpu)

    assert_raise ArgumentError, "option :as: Nx is not loaded", fn ->
      Policy.forward(policy, numbers({1, 1, 3}), as: :card)
    end
  end

  defp waits?(pid) do
    case Process.info(pid, [:current_function, :status]) do
      [current_function: {Sconce.Native.Call, _, _}, status: :waiting] -> true
      _other -> false
    end
  end

  defp until(fun, tries \\ 500) do
    cond do
      fun.() -> :ok
      tries == 0 -> flunk("the call does not wait")
      true -> Process.sleep(10) && until(fun, tries - 1)
    end
  end
end
