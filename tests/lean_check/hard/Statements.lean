/-! Statements in which the proof's start is hard to see. Parsed by Lean, never elaborated. -/
namespace Statements
universe u v

theorem defaults (n : Nat := 3) (h : n = 3 := by rfl) (k : Nat := let x := 1; x) : n = 3 := h
theorem strings : "a := b" = "theorem x : P := h" ++ "\" := " ++ r#" := "#  := rfl
theorem characters : ':' ≠ '=' ∧ '"' ≠ '\'' ∧ '(' ≠ '\\' ∧ '|' ≠ '[' := by decide
theorem primes (f' : Nat → Nat) (x'' : Nat) : f' x'' = f' x'' := rfl
theorem lets : let x := 1; let y := x + 1
  y = 2 := rfl
theorem lets_close : ∀ n : Nat,let x := n;let y := x;x = y := fun _ => rfl
theorem let_pattern : let (a, b) := (1, 2); a < b := by decide
theorem let_alternatives : let f : Nat → Nat | 0 => 1 | _ => 2; f 0 = 1 := rfl
theorem haves (n : Nat) : have m := n; have : m = n := rfl; m = n := rfl
theorem by_in_statement : (by have x := Nat; exact x) = Nat := rfl
theorem if_let (o : Option Nat) : if let some x := o then x = x else True := by
  cases o <;> simp
theorem shown : (show Nat from let x := 1; x) = 1 := rfl
theorem matched (n : Nat) : match n with
    | 0 => True
    | _ + 1 => True := by
  cases n <;> trivial
theorem matched_bracket (n : Nat) : (match n with | 0 => 1 | _ => 1) = 1 := by
  cases n <;> rfl
theorem functions : (fun | 0 => 1 | n + 1 => n : Nat → Nat) = fun
    | 0 => 1
    | n + 1 => n := rfl
theorem pipes (x : Nat) (f : Nat → Nat) : x |> f = f x := rfl
theorem pipes_fun (x : Nat) : (x |>.succ) = (fun y => y + 1) x := rfl
theorem pipe_then_arrow (x : Nat) : x |> id = (x |> fun y => y) := rfl
theorem backward : id <| 1 = 1 := trivial
theorem or_bars (a b : Bool) : (a || b) = (a || b) ∧ (1 ||| 2) = 3 := by decide
theorem alternatives : ∀ n : Nat, n = n | 0 => rfl | _ + 1 => rfl
theorem alternatives_column_zero : ∀ n : Nat, n = n
| 0 => rfl
| _ + 1 => rfl
theorem alternatives_many : ∀ n m : Nat, n = m → m = n
  | 0, 0, _ | _, _, rfl => rfl
theorem alternatives_structure : ∀ p : Nat × Nat, p = p
  | {fst := a, snd := b} => rfl
theorem where_structure (p q : Prop) (hp : p) (hq : q) : p ∧ q where
  left := hp
  right := hq
theorem where_close (p q : Prop) (hp : p) (hq : q) : (p ∧ q)
where left := hp
      right := hq
theorem universes.{w} {α : Type w} (x : α) : x = x := rfl
theorem implicit ⦃x : Nat⦄ (h : x = 1) : 1 = x := h.symm
theorem subtype (x : {z : Int // -1 < z}) : -1 < x.val := x.property
theorem set_like (h : ∃ x, x = 1 ∧ {y : Nat // y = x} = {y // y = 1}) : True := trivial
theorem explicit_arguments : @id Nat (n := 1) = 1 := rfl
theorem comment_first /- : P := h -/ (n : Nat) -- := no
  : n = n /- := no -/ := /- here -/ rfl
theorem comment_line : 1 = 1 := -- why
  -- and again
  rfl
theorem «quoted := name» : 1 = 1 := rfl
theorem dotted.«two words».x : 1 = 1 := rfl
theorem _root_.Statements.rooted : 1 = 1 := rfl
theorem glued(n:Nat):n=n:=rfl
theorem inaccessible : ∀ n : Nat, n = n := fun n => by
  exact rfl
theorem unicode_name₁' {α β : Type u} (f : α → β) : f = f := rfl
theorem order (a b : Nat) (h : a ≤ b) : a ≤ b ∨ b ≤ a := .inl h
theorem do_notation : (do let x ← some 1; let y := x; return y) = some 1 := rfl
theorem do_lines : (do
    let x ← some 1
    pure x) = some 1 := rfl
theorem interpolated (x : Nat) : s!"{x} := {"}"} {s!"{x}"}" = s!"{x} := {"}"} {s!"{x}"}" := rfl
theorem tail : 1 = 1 := rfl
end Statements
