"""Results as text: tables, trees and JSON. Nothing here ever sees a model."""
