/-!
# Strings, characters and what hides in them

Nothing quoted below is a declaration: "theorem quoted : True := trivial".
-/

namespace Sample.Text

def opening : String := "theorem hidden : True := by
  trivial"

def escaped : String := "a \"quoted\" word, a backslash \\ and -- no comment"

def raw : String := r#"raw "quotes" and \ backslashes, /- no comment -/"#

def greeting (name : String) : String := s!"hello {name ++ "!"} and {String.length "--}"}"

def quoteMark : Char := '"'

def apostrophe : Char := '\''

theorem quote_ne_apostrophe : quoteMark ≠ apostrophe := by
  decide

theorem quote_is_quote : quoteMark = '"' := rfl

theorem opening_length_pos : 0 < opening.length := by decide

theorem bracket_chars (c : Char) (h : c = '(' ∨ c = ')') : c ≠ '"' := by
  rcases h with h' | h' <;> subst h' <;> decide

/-- Primes belong to names: `x'` is no character. -/
theorem prime_names (x x' x'' : Nat) (h : x = x') (h' : x' = x'') : x = x'' :=
  h.trans h' /- transitivity -/ -- and nothing else

theorem «a name with spaces, := and theorem» (p : Prop) (hp : p) : p :=
  hp

theorem uses_quoted_name (p : Prop) (hp : p) : p ∧ p :=
  ⟨«a name with spaces, := and theorem» p hp, hp⟩

end Sample.Text
