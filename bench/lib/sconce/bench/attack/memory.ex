defmodule Sconce.Bench.Attack.Memory do
  @moduledoc false
  # Item 4: passes that need more memory than the process is allowed.

  import Sconce.Bench.Attack, only: [answer: 1]
  import Sconce.Bench.Attack.Fixtures

  alias Sconce.Bench.Attack
  alias Sconce.{Policy, Serving, Session, Trainer}

  # Limits the address space, in kilobytes. The VM itself needs two or three million.
  @limit "ulimit -v 6000000"
  @rows 1_000_000
  @wide [hidden_sizes: [8192, 8192]]
  @gru [backbone: :gru, hidden_size: 2048, num_layers: 1]
  @stop_ms 10_000

  def rows do
    for {name, attack} <- [
          {"Policy.forward of 8 MB of rows through 8192-8192", &forward/1},
          {"Serving.forward of 8 MB of rows through 8192-8192", &served/1},
          {"Session.act in windows of 4,096 of a GRU of 2048", &windows/1},
          {"a run of a GRU of 2048 with 512 windows of 2,000", &trained/1},
          {"Trainer.plan of a GRU of 2048 with 512 windows of 2,000", &planned/1},
          {"Trainer.evaluate of a GRU of 2048 on games of 2,500", &evaluated/1}
        ] do
      %Attack{
        item: 4,
        name: "#{@limit}: #{name}",
        make: &make/1,
        attack: attack,
        accept: :answered,
        limit: @limit,
        seconds: nil,
        mb: nil,
        patience_ms: 180_000
      }
    end
  end

  defp make(dir), do: corpus!(dir, 16, 2_500)

  # After a refused pass, the next one must succeed.
  defp forward(_dir) do
    policy = policy!(@wide)

    [
      {"pass", answer(fn -> Policy.forward(policy, zeros(@rows)) end)},
      {"a small pass", answer(fn -> Policy.forward(policy, zeros(1)) end)}
    ]
  end

  defp served(_dir) do
    {:ok, serving} = Serving.start_link(policy: policy!(@wide))

    answers = [
      {"pass", answer(fn -> Serving.forward(serving, zeros(@rows)) end)},
      {"a small pass", answer(fn -> Serving.forward(serving, zeros(1)) end)}
    ]

    Serving.stop(serving)
    answers
  end

  defp windows(_dir) do
    policy = policy!(@gru)

    answer(fn ->
      with {:ok, session} <- Session.open(policy, mode: :window, window_size: 4_096) do
        answer = Session.act(session, [0.0, 1.0], deadline_ms: @stop_ms)
        Session.close(session)
        with {:error, %{kind: :deadline}} <- answer, do: :late
      end
    end)
  end

  defp zeros(rows), do: :binary.copy(<<0::64>>, rows)

  # A run that is computed in parts takes hours, so the attack only checks that the run started.
  defp trained(dir) do
    answer(fn ->
      {:ok, run} =
        dir |> options() |> Keyword.put(:out, Path.join(dir, "run")) |> Trainer.start_link()

      answer = Trainer.await(run, @stop_ms)
      # The run's process stays alive after the end of its run.
      Process.unlink(run)
      Process.exit(run, :kill)
      with {:error, %{kind: :deadline}} <- answer, do: :began
    end)
  end

  defp planned(dir), do: answer(fn -> Trainer.plan(options(dir)) end)

  defp options(dir) do
    [corpus: Path.join(dir, "corpus"), steps: 1, loss: :plain, evaluate: false] ++
      @gru ++ [batch_size: 512, window_size: 2_000, stride: 1]
  end

  # Scores take longer than the timeout, so the attack only checks that the evaluation started.
  defp evaluated(dir) do
    checkpoint = Path.join(dir, "wide.safetensors")

    answer(fn ->
      :ok = Policy.save(policy!(@gru), checkpoint)
      task = Task.async(fn -> Trainer.evaluate(checkpoint, Path.join(dir, "corpus")) end)
      with nil <- Task.yield(task, @stop_ms) || Task.shutdown(task), do: :began
    end)
  end
end
